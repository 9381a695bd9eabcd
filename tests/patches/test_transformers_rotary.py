"""Rotary embeddings that depend on the length, against transformers' generate."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    PretrainedConfig,
)

import tpuport
from tpuport import PortError, compat

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 32, "factor": 4.0,
}  # fmt: skip


def _pair(config: PretrainedConfig) -> tuple[Any, Any]:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.2)
        model.tie_weights()
        models.append(model)
    return models[0], tpuport.port(models[1])


def _prompt(length: int) -> torch.Tensor:
    return torch.randint(2, 64, (1, length), generator=torch.Generator().manual_seed(3))


def _batch(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Prompts of these lengths, padded on the left."""
    columns = max(lengths)
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, 64, (len(lengths), columns), generator=generator)
    mask = (torch.arange(columns) >= columns - torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


LLAMA = {"max_position_embeddings": 32, "num_hidden_layers": 2}
TYPES = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": LONG,
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 32,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
}  # fmt: skip
CONFIGS: dict[str, PretrainedConfig] = {
    name: LlamaConfig(**SIZES | LLAMA, rope_parameters={"rope_theta": 10000.0} | rope)
    for name, rope in TYPES.items()
} | {
    # Its code drops the cache at the switch.
    "phi3": Phi3Config(
        **SIZES | {"num_hidden_layers": 2}, max_position_embeddings=128, original_max_position_embeddings=32,
        rope_parameters=LONG,
    ),
    # Its full layers alone are scaled, the others see no distance beyond their window.
    "gemma3": Gemma3TextConfig(
        **SIZES | LLAMA, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8, rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
        },
    ),
}  # fmt: skip
# From one side to the other with padding, and beyond from the prompt on. Of the others, the table does not change.
QUICK = {
    ("dynamic", True),
    ("longrope", True),
    ("phi3", True),
    ("phi3", False),
    ("yarn", True),
    ("gemma3", True),
}


@pytest.mark.parametrize(
    ("name", "crosses"),
    [
        pytest.param(name, crosses, marks=[] if (name, crosses) in QUICK else pytest.mark.slow)
        for name in CONFIGS
        for crosses in (True, False)
    ],
)
def test_texts_get_longer_than_the_model_was_trained_for(name: str, crosses: bool) -> None:
    reference, ported = _pair(CONFIGS[name])
    batch, new = (_batch((28, 23)), 12) if crosses else (_batch((40, 20)), 8)
    options = {"max_new_tokens": new, "return_dict_in_generate": True, "output_logits": True}
    expected = reference.generate(**batch, **options)
    actual = tpuport.generate(ported, **batch, **options)
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.logits, expected.logits, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("name", "most"), [("dynamic", 64), ("yarn", 128), ("phi3", 128), ("gemma3", 64)])
def test_the_limit_is_the_scaled_one(name: str, most: int) -> None:
    _, ported = _pair(CONFIGS[name])
    with pytest.raises(PortError, match=f"do not fit max_position_embeddings.* = {most}"):
        tpuport.generate(ported, _prompt(12), max_new_tokens=most - 11)


def test_one_position_per_table_where_tables_change(caplog: pytest.LogCaptureFixture) -> None:
    reference, ported = _pair(CONFIGS["dynamic"])
    ids = _prompt(40)
    expected = reference.generate(ids, max_new_tokens=4)
    options = {"max_new_tokens": 4, "prompt_lookup_num_tokens": 3, "share_prefix": True}
    assert torch.equal(tpuport.generate(ported, ids, **options), expected)
    assert "prompt_lookup_num_tokens: generate decodes token by token" in caplog.text
    assert "share_prefix: the prompt of LlamaForCausalLM runs at once" in caplog.text
    with pytest.raises(PortError, match="each part of this prompt"):
        tpuport.generate(ported, ids, max_new_tokens=4, prefill_chunk_size=16)
    with pytest.raises(PortError, match="guidance_scale is not supported for a text so long"):
        tpuport.generate(ported, _prompt(30), max_new_tokens=4, guidance_scale=2.0)


@pytest.mark.slow  # generation above, and the compiled dynamic model below
def test_a_compiled_longrope_takes_the_table_of_its_length() -> None:
    config = Phi3Config(
        **SIZES, max_position_embeddings=128, original_max_position_embeddings=32, rope_parameters=LONG
    )
    reference, ported = _pair(config)
    compiled = tpuport.compile(ported)
    for length in (12, 40):
        got = compat.to_torch(compat.as_jax(compiled(_prompt(length)).logits))
        torch.testing.assert_close(got, reference(_prompt(length)).logits, atol=1e-4, rtol=1e-4)


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.slow  # the compiled dynamic model below, whose shorter prompt comes after the longer one
@pytest.mark.parametrize("when", ["on the host", "on the device"])
def test_a_long_sequence_leaves_no_dynamic_table_behind(when: str) -> None:
    config = LlamaConfig(**SIZES, max_position_embeddings=64, rope_parameters=DYNAMIC)
    reference, other = _pair(config)
    torch.manual_seed(0)
    fresh = AutoModelForCausalLM.from_config(config).eval()
    fresh.load_state_dict(reference.state_dict())
    ported = other if when == "on the device" else tpuport.port(_after(fresh, _prompt(120)))
    if when == "on the device":
        with compat.environment():
            ported(compat.wrap(compat.to_jax(_prompt(120))))
    grown = compat.as_jax(ported.model.rotary_emb.inv_freq)
    ids = _prompt(20)
    expected = reference.generate(ids, max_new_tokens=20)
    assert torch.equal(tpuport.generate(ported, ids, max_new_tokens=20), expected)
    now = compat.as_jax(ported.model.rotary_emb.inv_freq)
    assert not (grown == now).all(), "the long sequence changed nothing: the test shows nothing"


def _after(model: Any, ids: torch.Tensor) -> Any:
    model(ids)
    return model


@pytest.mark.parametrize(
    "length", [65, *(pytest.param(length, marks=pytest.mark.slow) for length in (20, 64, 100))]
)
def test_a_compiled_dynamic_model_takes_the_table_of_its_length(length: int) -> None:
    config = LlamaConfig(**SIZES, max_position_embeddings=64, rope_parameters=DYNAMIC)
    reference, ported = _pair(config)
    compiled = tpuport.compile(ported)
    for columns in (length, 20):
        got = compat.to_torch(compat.as_jax(compiled(_prompt(columns), use_cache=False).logits))
        torch.testing.assert_close(got, reference(_prompt(columns)).logits, atol=1e-4, rtol=1e-4)
    assert ported.model.rotary_emb.rope_type == "dynamic"
    assert "forward" not in vars(ported.model.rotary_emb)
