"""JetMoE's experts on the device, against transformers' own on the CPU."""

import copy
from typing import Any

import pytest
import torch
from transformers import JetMoeConfig, JetMoeForCausalLM

import tpuport
from tpuport import compat


def _make_pair() -> tuple[Any, Any]:
    """A model in torch and the same one ported."""
    torch.manual_seed(0)
    config = JetMoeConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=1, num_key_value_heads=2, kv_channels=8, intermediate_size=16,
        num_local_experts=4, num_experts_per_tok=2, eos_token_id=None,
    )  # fmt: skip
    reference = JetMoeForCausalLM(config).eval()
    for parameter in reference.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return reference, tpuport.port(copy.deepcopy(reference))


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_equals_torch() -> None:
    reference, ported = _make_pair()
    ids = torch.randint(3, 96, (2, 7))
    expected = reference(ids).logits
    actual = compat.to_torch(compat.as_jax(tpuport.compile(ported)(input_ids=ids, use_cache=False).logits))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # the logits above
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_generate() -> None:
    reference, ported = _make_pair()
    ids = torch.randint(3, 96, (2, 7))
    options = {"max_new_tokens": 6, "do_sample": False}
    expected_tokens = reference.generate(ids, **options)
    assert torch.equal(tpuport.generate(ported, ids, **options), expected_tokens)
