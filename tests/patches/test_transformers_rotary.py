"""Rotary embeddings that depend on the length, against transformers' generate."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PretrainedConfig

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
        models.append(model)
    return models[0], tpuport.port(models[1])


def _prompt(length: int) -> torch.Tensor:
    return torch.randint(2, 64, (1, length), generator=torch.Generator().manual_seed(3))


def test_longrope_on_either_side_of_its_switch() -> None:
    config = Phi3Config(
        **SIZES, max_position_embeddings=128, original_max_position_embeddings=32, rope_parameters=LONG
    )
    reference, ported = _pair(config)
    for length, new in ((12, 21), (40, 20)):
        ids = _prompt(length)
        expected = reference.generate(ids, max_new_tokens=new)
        assert torch.equal(tpuport.generate(ported, ids, max_new_tokens=new), expected)
    with pytest.raises(PortError, match="at most 21 new tokens"):
        tpuport.generate(ported, _prompt(12), max_new_tokens=22)


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


@pytest.mark.parametrize(
    "rope",
    [
        # The tests of dynamic tables below, and tables that scale as YaRN's.
        pytest.param({"rope_type": "dynamic", "factor": 2.0}, marks=pytest.mark.slow),
        pytest.param({"rope_type": "linear", "factor": 2.0}, marks=pytest.mark.slow),
        pytest.param(
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, marks=pytest.mark.slow
        ),
        # tests/checkpoint/formats/test_gguf.py has the scaling of Llama 3.
        pytest.param(
            {
                "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 32,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_other_scalings(rope: dict[str, Any]) -> None:
    config = LlamaConfig(**SIZES, max_position_embeddings=128, rope_parameters=rope | {"rope_theta": 10000.0})
    reference, ported = _pair(config)
    ids = _prompt(40)
    expected = reference.generate(ids, max_new_tokens=12)
    assert torch.equal(tpuport.generate(ported, ids, max_new_tokens=12), expected)
    assert ported.model.rotary_emb.rope_type == rope["rope_type"]


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
