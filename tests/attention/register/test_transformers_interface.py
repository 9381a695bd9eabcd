"""Attention of transformers' models through tpuport's functions, against transformers' own."""

import copy
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig
from transformers import masking_utils as masks
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.inkling2 import modeling_inkling2
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl

import tpuport
from tpuport import attention, compat
from tpuport.attention.register.mask_interface import transformers_mask
from tpuport.attention.register.transformers_interface import (
    NAME,
    register_transformers,
    transformers_attention,
    unregister_transformers,
)
from tpuport.errors import PortError


def on_device(value: Any) -> Any:
    return compat.wrap(compat.to_jax(value)) if isinstance(value, torch.Tensor) else value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
ALTERNATING = {
    "num_hidden_layers": 2, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
ENCODER = {key: SIZES[key] for key in list(SIZES)[:5]} | {"max_position_embeddings": 64, "pad_token_id": 0}
FAMILIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "LlamaForCausalLM": (SIZES, {"causal"}),
    "MistralForCausalLM": (SIZES | {"sliding_window": 6}, {"window 6"}),
    "Gemma2ForCausalLM": (SIZES | ALTERNATING | {"attn_logit_softcapping": 2.0}, {"window 6", "causal"}),
    "Gemma3ForCausalLM": (SIZES | ALTERNATING, {"window 6", "causal"}),
    "Qwen3ForCausalLM": (SIZES, {"causal"}),
    "Phi3ForCausalLM": ({k: v for k, v in SIZES.items() if k != "head_dim"}, {"causal"}),
    "GptOssForCausalLM": (
        SIZES | ALTERNATING | {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"window 6", "causal"},
    ),
    "MixtralForCausalLM": (SIZES | {"num_local_experts": 4}, {"causal"}),
    "Llama4ForCausalLM": (
        SIZES | {"num_hidden_layers": 2, "layer_types": ["chunked_attention", "full_attention"],
                 "attention_chunk_size": 5, "num_local_experts": 2, "intermediate_size_mlp": 32},
        {"causal, segments", "causal"},
    ),
    "BertModel": (ENCODER, {""}),
    "ModernBertModel": (
        ENCODER | {"num_hidden_layers": 2, "local_attention": 6, "global_attn_every_n_layers": 2},
        {"", "band 3 before, 3 after"},
    ),
}  # fmt: skip


def model_of(name: str, config: dict[str, Any]) -> torch.nn.Module:
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**config)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape)  # sinks and biases take part
    return model


def outputs(
    model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor | None
) -> tuple[np.ndarray, np.ndarray, Any]:
    """First output of torch and of the compiled port, and what `explain` says of the latter."""
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask)[0].numpy()
    ported = tpuport.port(model)
    attention.explain(clear=True)
    got = tpuport.compile(ported)(input_ids=ids, attention_mask=mask)
    return expected, compat.to_torch(compat.as_jax(got[0])).numpy(), attention.explain(clear=True)


# Their masks are those of Llama, or of Gemma 2, and their attention has nothing else of its own.
LIKE_ANOTHER = (
    "Gemma2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "MixtralForCausalLM",
    "Gemma3ForCausalLM",
    "MistralForCausalLM",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_ANOTHER else []) for name in FAMILIES],
)
def test_families_agree_with_torch_and_build_no_dense_mask(name: str) -> None:
    config, kinds = FAMILIES[name]
    ids = torch.randint(1, 64, (2, 12), generator=generator(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    eager = {"attn_implementation": "eager"} if name in ("Gemma2ForCausalLM", "GptOssForCausalLM") else {}
    expected, got, calls = outputs(model_of(name, config | eager), ids, mask)
    # Padding too, which sees no key: the model's own attention gives it the mean of all values there, or a sink's zero.
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert {call.source for call in calls} == {"transformers"}
    assert not any("dense" in call.mask for call in calls)
    found = {call.mask.replace("padding", "").strip(", ").replace(", , ", ", ") for call in calls}
    assert found == kinds
    assert all("padding" in call.mask for call in calls)


@pytest.mark.slow  # T5 in tests/generation/test_encoder_decoder.py
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_relative_positions_are_added_where_the_mask_lets_them() -> None:
    config = {"vocab_size": 64, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4}
    model = model_of("T5ForConditionalGeneration", config)
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator(3))
    ids = torch.randint(1, 64, (2, 9), generator=generator(1))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    arguments = {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": ids[:, :5],
        "use_cache": False,
    }
    with torch.no_grad():
        expected = model(**arguments).logits
    got = tpuport.compile(tpuport.port(model))(**arguments).logits
    np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-5)


def test_positions_that_a_model_counts_by_itself_are_one_sequence() -> None:
    ids = torch.randint(1, 64, (1, 11), generator=generator(1))
    model = model_of("LlamaForCausalLM", SIZES)
    attention.explain(clear=True)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    got = tpuport.compile(tpuport.port(model))(input_ids=ids, use_cache=False).logits
    np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-5)
    assert {call.mask for call in attention.explain(clear=True)} == {"causal"}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_a_causal_mask_is_left_out_as_in_transformers() -> None:
    """Aimv2's text attention is not causal by itself, so that it is causal only where a row has padding."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = model_of("Aimv2TextModel", sizes | {"num_attention_heads": 2, "eos_token_id": 1})
    ids = torch.randint(2, 64, (2, 8), generator=generator(1))
    whole = torch.ones_like(ids)
    padded = whole.clone()
    padded[1, 6:] = 0
    compiled = tpuport.compile(tpuport.port(model))
    for mask in (padded, whole, None):
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        got = compiled(input_ids=ids, attention_mask=mask).last_hidden_state
        np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-5)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_a_mask_without_order_is_left_out_as_in_transformers() -> None:
    """Phi-4's attention of images is causal by itself, so that it is so where no patch is masked."""
    config = transformers.Phi4MultimodalConfig().vision_config
    config.update(
        {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    )
    config.update({"image_size": 28, "patch_size": 7, "crop_size": 28, "attn_implementation": "sdpa"})
    torch.manual_seed(0)
    model = transformers.Phi4MultimodalVisionModel(config).eval()
    pixels = torch.randn(2, 3, 28, 28, generator=generator(1))
    whole = torch.ones(2, 4, 4, dtype=torch.bool)
    padded = whole.clone()
    padded[1, 3:] = False
    compiled = tpuport.compile(tpuport.port(copy.deepcopy(model)))
    for mask in (padded, whole, None):
        with torch.no_grad():
            expected = model(pixels, patch_attention_mask=mask).last_hidden_state
        got = compiled(pixels, patch_attention_mask=mask).last_hidden_state
        np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-5)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize(
    "token_types", [None, "prefix and suffix", pytest.param("suffix", marks=pytest.mark.slow)]
)
def test_a_model_that_counts_its_positions_from_one(token_types: str | None) -> None:
    """PaliGemma's attention is not causal by itself either, and its positions could be those of packed sequences.

    Without token types, transformers leaves the mask out; a mask for a suffix alone is causal, but is not left out.
    """
    sizes = {key: SIZES[key] for key in SIZES if key not in ("pad_token_id", "max_position_embeddings")}
    text = sizes | {"model_type": "gemma"}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.PaliGemmaConfig(
        text_config=text, vision_config=vision | {"image_size": 28, "patch_size": 14}, image_token_id=63
    )
    torch.manual_seed(0)
    model = transformers.PaliGemmaModel(config).eval()
    ids = torch.randint(1, 60, (2, 8), generator=generator(1))
    inputs = {"input_ids": ids}
    if token_types is not None:
        inputs["token_type_ids"] = torch.ones_like(ids)
        inputs["token_type_ids"][:, : 3 * ("prefix" in token_types)] = 0
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
    got = tpuport.compile(tpuport.port(model))(**inputs).last_hidden_state
    np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-5)


def test_packed_sequences_see_themselves_only() -> None:
    model = model_of("LlamaForCausalLM", SIZES)
    ids = torch.randint(1, 64, (1, 11), generator=generator(1))
    with torch.no_grad():
        alone = torch.cat([model(input_ids=part).logits for part in ids.split([4, 7], dim=1)], dim=1)
    ported = tpuport.port(model)
    attention.explain(clear=True)
    positions = torch.cat([torch.arange(4), torch.arange(7)])[None]
    got = tpuport.compile(ported)(input_ids=ids, position_ids=positions, use_cache=False).logits
    np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), alone, atol=2e-5)
    assert {call.mask for call in attention.explain(clear=True)} == {"causal, segments"}


class Attention(torch.nn.Module):
    is_causal = True
    num_key_value_groups = 2


def operands(queries: int = 4, keys: int = 4) -> list[torch.Tensor]:
    shapes = ((2, 4, queries, 8), (2, 2, keys, 8), (2, 2, keys, 6))
    return [torch.randn(shape, generator=generator(n)) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    "case",
    [
        {"attention_mask": None}, {"attention_mask": None, "is_causal": False}, {"queries": 1},
        {"attention_mask": torch.rand(2, 1, 4, 4, generator=generator(9)) < 0.7}, {"scaling": 0.7},
        {"attention_mask": torch.randn(2, 4, 4, 4, generator=generator(9))}, {"keys": 7},
        {"attention_mask": torch.randn(4, 4, generator=generator(9)), "position_bias": torch.randn(1, 4, 4, 4)},
        {"position_bias": torch.randn(1, 4, 4, 4, generator=generator(9))},
        {"attention_mask": torch.rand(2, 1, 1, 4, generator=generator(9)) < 0.7, "position_bias": torch.ones(1, 4, 4, 4)
         },
        {"query_rows": 1, "is_causal": False, "keys": 7},
    ],
)  # fmt: skip
def test_attention_is_that_of_transformers(case: dict[str, Any]) -> None:
    q, k, v = operands(case.pop("queries", 4), case.pop("keys", 4))
    q = q[: case.pop("query_rows", 2)]
    mask = case.pop("attention_mask", None)
    module = Attention()
    expected, _ = sdpa_attention_forward(module, q, k, v, mask, **case)
    bias = case.pop("position_bias", None)

    def run(*arrays: jax.Array | None) -> jax.Array:
        with compat.environment():
            *given, bias = [None if array is None else compat.wrap(array) for array in arrays]
            got, weights = transformers_attention(module, *given, position_bias=bias, **case)
            assert weights is None
            return compat.as_jax(got)

    inputs = [None if tensor is None else compat.to_jax(tensor) for tensor in (q, k, v, mask, bias)]
    got = compat.to_torch(jax.jit(run)(*inputs))
    seen = torch.ones(2, 4, dtype=torch.bool) if mask is None or mask.ndim < 4 else None
    seen = mask.broadcast_to(2, mask.shape[1], 4, 4).any(-1)[:, 0] if seen is None else seen
    rows = seen[:, : q.shape[2]]
    np.testing.assert_allclose(got[rows], expected[rows], atol=2e-6)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_queries_without_a_key_beside_a_bias_attend_to_all_or_to_their_sink(has_sinks: bool) -> None:
    q, k, v = operands()
    options = {"position_bias": torch.randn(1, 4, 4, 4, generator=generator(9))}
    if has_sinks:
        options["sinks"] = torch.randn(2, 4, 4, 1, generator=generator(5))
    padding = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]], dtype=torch.bool)
    causal = torch.ones(4, 4, dtype=torch.bool).tril() & padding[:, None, None, :]
    added = torch.where(causal, 0.0, torch.finfo(torch.float32).min)
    expected, _ = modeling_inkling2.eager_attention_forward(Attention(), q, k, v, added, 8**-0.5, **options)
    with compat.environment():
        mask = transformers_mask(2, 4, 4, attention_mask=on_device(padding))
        tensors = {name: on_device(value) for name, value in options.items()}
        got, _ = transformers_attention(Attention(), *map(on_device, (q, k, v)), mask, **tensors)
    np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-6)


def test_codebooks_of_a_row_share_its_mask() -> None:
    padding = torch.tensor([[1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    with compat.environment():
        mask = transformers_mask(2, 3, 3, attention_mask=on_device(padding.repeat_interleave(4, 0)))
        assert np.array_equal(mask.structure.keys_BT, padding)


def test_tensors_of_the_host_stay_with_torch() -> None:
    q, k, v = operands()
    expected, _ = sdpa_attention_forward(Attention(), q, k, v, None)
    got, _ = transformers_attention(Attention(), q, k, v, None)
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout": 1.1}, "dropout"),
        ({"output_attentions": True}, "weights"),
        ({"head_mask": torch.ones(4)}, "heads"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 4])}, "packed"),
        ({"cache": object()}, "paged"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: dict[str, Any], message: str) -> None:
    with compat.environment(), pytest.raises(PortError, match=message):
        transformers_attention(Attention(), *map(on_device, operands()), None, **arguments)


def test_tensors_of_which_some_are_on_the_host_are_refused() -> None:
    q, k, v = operands()
    with compat.environment(), pytest.raises(PortError, match="not on the device"):
        transformers_attention(Attention(), on_device(q), k, v, None)
    with pytest.raises(PortError, match="not on the device"):
        transformers_attention(Attention(), q, k, v, None, softcap=3.0)


def test_a_mask_of_another_length_is_refused() -> None:
    with compat.environment():
        mask = transformers_mask(2, 4, 6, allow_is_causal_skip=False)
        with pytest.raises(PortError, match="a mask"):
            transformers_attention(Attention(), *map(on_device, operands()), mask)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_mask_that_was_made_for_one_query_is_that_of_all(is_causal: bool) -> None:
    q, k, v = operands()
    padding = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1]], dtype=torch.bool)
    function = masks.causal_mask_function if is_causal else masks.bidirectional_mask_function
    positions = (2, 1, 4, 3 if is_causal else 0)
    theirs = masks.sdpa_mask(*positions, mask_function=function, attention_mask=padding)
    expected, _ = sdpa_attention_forward(Attention(), q, k, v, theirs)
    with compat.environment():
        mask = transformers_mask(*positions, mask_function=function, attention_mask=on_device(padding))
        got, _ = transformers_attention(Attention(), *map(on_device, (q, k, v)), mask)
    np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-6)


def test_an_indexer_chooses_keys() -> None:
    q, k, v = operands(4, 5)
    chosen = torch.tensor([[0, -1], [0, 1], [2, 1], [0, 3]]).expand(2, -1, -1)
    allowed = torch.zeros(2, 1, 4, 6, dtype=torch.bool)
    allowed.scatter_(-1, chosen[:, None] % 6, True)
    visible = allowed[..., :5] & torch.ones(4, 5).tril().bool()
    expected, _ = sdpa_attention_forward(Attention(), q, k, v, visible)
    with compat.environment():
        mask = transformers_mask(2, 4, 5)
        got, _ = transformers_attention(
            Attention(), *map(on_device, (q, k, v)), mask, indices=on_device(chosen)
        )
    np.testing.assert_allclose(compat.to_torch(compat.as_jax(got)), expected, atol=2e-6)


@pytest.mark.parametrize("dropout", [0.0, 1.0])
def test_a_sink_of_each_query_takes_its_share(dropout: float) -> None:
    q, k, v = operands(4, 6)
    sinks = torch.randn(2, 4, 4, 1, generator=generator(5))
    bias = torch.randn(2, 4, 4, 6, generator=generator(6))
    # The lowest number hides a key; the first query sees none, and its sink takes everything.
    mask = torch.zeros(2, 1, 4, 6).masked_fill(torch.arange(6) > torch.arange(4)[:, None] - 1, -3e38)
    module = Attention()
    expected, _ = modeling_inkling2.eager_attention_forward(
        module, q, k, v, mask, 0.3, dropout=dropout, position_bias=bias, sinks=sinks
    )
    with compat.environment():
        options = {"position_bias": on_device(bias), "sinks": on_device(sinks)}
        got, _ = transformers_attention(
            module, *map(on_device, (q, k, v)), on_device(mask), dropout, 0.3, **options
        )
    torch.testing.assert_close(tpuport.to_cpu(got), expected, atol=2e-6, rtol=0)


def test_an_indexer_chooses_blocks_of_keys_for_groups_of_heads() -> None:
    q, k, v = operands(5, 5)
    chosen = torch.tensor(
        [[[0, -1], [0, 1], [1, 0], [1, -1], [2, 0]], [[0, -1], [0, -1], [0, 1], [1, -1], [2, 1]]]
    )
    chosen = chosen.expand(2, -1, -1, -1)
    indexer = torch.nn.Module()
    indexer.block_size, indexer.config = 2, LlamaConfig(num_attention_heads=4)
    module = Attention()
    module.indexer = indexer
    mask = modeling_minimax_m3_vl.MiniMaxM3VLIndexer.build_block_mask(
        indexer, chosen, None, 5, q.dtype, q.device, torch.arange(5)[None]
    )
    expected, _ = modeling_minimax_m3_vl.eager_attention_forward(module, q, k, v, mask, 0.3)
    with compat.environment():
        causal = transformers_mask(2, 5, 5)
        got, _ = transformers_attention(
            module, *map(on_device, (q, k, v)), causal, scaling=0.3, block_indices=on_device(chosen)
        )
    torch.testing.assert_close(tpuport.to_cpu(got), expected, atol=2e-6, rtol=0)


def weights_of(
    model: torch.nn.Module, padded: torch.Tensor, **options: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The weights that torch returns, and those of a compiled port of the model."""
    ids = torch.randint(1, 64, padded.shape, generator=generator(1))
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=padded, **options).attentions
    got = tpuport.compile(tpuport.port(model))(input_ids=ids, attention_mask=padded, **options).attentions
    return list(expected), list(tpuport.to_cpu(got))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("LlamaForCausalLM", "by an argument"),
        ("BertModel", "by the config"),
        pytest.param("LlamaForCausalLM", "by the config", marks=pytest.mark.slow),
        pytest.param("BertModel", "by an argument", marks=pytest.mark.slow),
    ],
)
def test_a_model_of_eager_attention_returns_the_weights_that_it_is_asked_for(asked: str, name: str) -> None:
    sizes = ENCODER if name == "BertModel" else SIZES
    model = model_of(name, sizes | {"attn_implementation": "eager"})
    padded = torch.tensor([[1] * 12, [0] * 3 + [1] * 9])
    options = {"output_attentions": True}
    if asked == "by the config":
        model.config.output_attentions, options = True, {}
    attention.explain(clear=True)
    expected, got = weights_of(model, padded, **options)
    assert len(expected) == model.config.num_hidden_layers
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=0)
    calls = attention.explain(clear=True)
    assert {call.implementation for call in calls} == {"eager"}
    assert "output_attentions" in str(calls)


@pytest.mark.slow  # the weights that a model is asked for above
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_weights_that_a_model_returns_unasked() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1}
    text = sizes | {"num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 64}
    config = transformers.BridgeTowerConfig(
        **sizes, num_attention_heads=2, text_config=text,
        vision_config=sizes | {"patch_size": 8, "image_size": 16},
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.BridgeTowerModel(config).eval()
    padded = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    options = {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator(2))}
    expected, got = weights_of(model, padded, **options)
    assert len(expected) == 1
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=0)


def test_the_remedy_for_weights_of_fused_attention_is_one() -> None:
    model = model_of("LlamaForCausalLM", SIZES)
    padded = torch.ones(1, 6, dtype=torch.long)
    ids = padded + 1
    with pytest.raises(PortError, match="set_attn_implementation"):
        tpuport.compile(tpuport.port(model))(input_ids=ids, output_attentions=True)
    model = model_of("LlamaForCausalLM", SIZES)
    model.set_attn_implementation("eager")
    expected, got = weights_of(model, padded, output_attentions=True)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=0)


def test_registration_leaves_no_trace() -> None:
    unregister_transformers()
    tables = [interface._global_mapping for interface in (AttentionInterface, AttentionMaskInterface)]
    before = [list(table.items()) for table in tables]
    register_transformers()
    register_transformers()
    assert all(NAME in table for table in tables)
    unregister_transformers()
    unregister_transformers()
    assert [list(table.items()) for table in tables] == before


def test_more_heads_of_values_than_of_keys() -> None:
    query, key, value = (torch.randn(2, heads, 5, 8, generator=generator(heads)) for heads in (4, 2, 4))
    module = torch.nn.Module()
    module.is_causal = False
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    actual, _ = transformers_attention(module, *map(on_device, (query, key, value)), None)
    torch.testing.assert_close(tpuport.to_cpu(actual), expected.transpose(1, 2))
