"""Models whose cache has states of a recurrence: token for token what transformers' generate gives on the CPU."""

from typing import Any

import jax
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Mamba2Config,
    MambaConfig,
    MiniMaxConfig,
    PretrainedConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
    RwkvForCausalLM,
)

import tpuport
from tpuport.errors import PortError
from tpuport.generation import decoder_for

_SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0, "eos_token_id": 2}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32}
CONFIGS: dict[str, PretrainedConfig] = {
    "mamba": MambaConfig(**_SIZES, state_size=4),
    # Its states ignore padding.
    "mamba2": Mamba2Config(
        **_SIZES | {"num_hidden_layers": 1}, state_size=8, num_heads=4, head_dim=16, n_groups=1, chunk_size=16
    ),
    # Its states have seen padding, its cache is a list of tensors, and its first call rescales weights.
    "rwkv": RwkvConfig(**_SIZES, attention_hidden_size=32, intermediate_size=32, context_length=64, rescale_every=1),
    # Its states are attributes of its modules, and have seen padding.
    "recurrent_gemma": RecurrentGemmaConfig(
        **_SIZES | {"num_hidden_layers": 3}, num_attention_heads=4, head_dim=8, intermediate_size=64, lru_width=32,
        attention_window_size=8,
    ),
    # Each layer has a recurrence and attention.
    "falcon_h1": FalconH1Config(
        **_SIZES, **_ATTENTION, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=16,
        max_position_embeddings=256,
    ),
    # A cache class of its own, in which keys and values grow, and its first layer has none, so that transformers
    # makes the mask of a token for a single key: rows with padding then see nothing.
    "minimax": MiniMaxConfig(
        **_SIZES, **_ATTENTION, num_local_experts=2, num_experts_per_tok=1, block_size=8,
        layer_types=["linear_attention", "full_attention"], max_position_embeddings=256,
    ),
}  # fmt: skip
OPTIONS: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": []}


def make_pair(name: str, mesh: Any = None) -> tuple[Any, Any]:
    """A model in torch and the same one ported, with weights that make greedy decoding change its mind."""
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data += 0.2 * torch.randn(parameter.shape)
        models.append(model)
    return models[0], tpuport.port(models[1], mesh=mesh or tpuport.create_mesh(devices=jax.devices()[:1]))


@pytest.mark.parametrize(
    ("name", "ignores_padding"),
    [
        pytest.param("mamba", True, marks=pytest.mark.slow),  # its cache is that of Mamba-2
        ("mamba2", True),
        # Makes its own state as Mamba-2 does, and takes as little padding as RecurrentGemma.
        pytest.param("rwkv", False, marks=pytest.mark.slow),
        pytest.param("recurrent_gemma", False, marks=pytest.mark.slow),
        pytest.param("minimax", False, marks=pytest.mark.slow),
    ],
)
def test_greedy_equals_transformers(name: str, ignores_padding: bool, prompts: tuple) -> None:
    """Lengths share a program only where padding leaves nothing in the states."""
    reference, ported = make_pair(name)
    # Of the two shorter prompts, so that there is padding in every row and in some.
    batches = [(prompts[0][1:] % 96, prompts[1][1:]), (prompts[0][1:, 7:] % 96, prompts[1][1:, 7:])]
    for ids, mask in batches if ignores_padding else batches[1:]:
        expected = reference.generate(ids, attention_mask=mask, **OPTIONS)
        assert torch.equal(tpuport.generate(ported, ids, mask, **OPTIONS), expected)
        assert len(set(expected[:, ids.shape[1] :].flatten().tolist())) > 4, (
            "a constant output would prove little"
        )
    decoder = decoder_for(ported)
    assert decoder.uses_buckets == ignores_padding
    assert decoder.prefill.compilations == 1
    if not ignores_padding:
        with pytest.raises(PortError, match="several lengths cannot share a batch"):
            tpuport.generate(ported, [[5, 6], [7, 8, 9]], **OPTIONS)


@pytest.mark.slow  # each recurrence on one device above, and test_sharded.py for meshes
def test_a_hybrid_model_on_a_mesh(prompts: tuple) -> None:
    reference, ported = make_pair("falcon_h1", tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]))
    ids, mask = prompts[0] % 96, prompts[1]
    expected = reference.generate(ids, attention_mask=mask, **OPTIONS)
    assert torch.equal(tpuport.generate(ported, ids, mask, **OPTIONS), expected)


@pytest.mark.slow  # "python" in test_user_models.py: the same comparison
def test_a_state_that_grows_is_named() -> None:
    """The loop on the device carries arrays of one shape."""

    class Remembering(RwkvForCausalLM):
        def forward(
            self, input_ids: Any = None, state: Any = None, use_cache: Any = None, **inputs: Any
        ) -> Any:
            output = super().forward(input_ids=input_ids, state=state and state[:5], use_cache=use_cache)
            output.state = [*output.state, torch.cat([*(state or ())[5:], input_ids], dim=1)]
            return output

    model = tpuport.port(Remembering(CONFIGS["rwkv"]).eval())
    with pytest.raises(PortError, match=r"a token changes .*state"):
        tpuport.generate(model, [[5, 6, 7]], **OPTIONS)


def test_a_value_that_is_asked_for_while_padding_is_tried_is_explained() -> None:
    """Whether states ignore padding is found out before the prompt runs, by the first trace of the model."""

    class Asking(FalconH1ForCausalLM):
        def forward(self, input_ids: Any = None, **inputs: Any) -> Any:
            assert len(input_ids.nonzero())
            return super().forward(input_ids=input_ids, **inputs)

    model = tpuport.port(Asking(CONFIGS["falcon_h1"]).eval())
    with pytest.raises(PortError, match="cannot be traced"):
        tpuport.generate(model, [[5, 6, 7]], **OPTIONS)
