"""Experts as modules of their own, each on every token, beside transformers' loop over those that are chosen."""

import copy
from typing import Any

import jax
import pytest
import torch
from transformers import (
    DbrxConfig,
    NllbMoeConfig,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)
from transformers.models.dbrx.modeling_dbrx import DbrxExperts
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeExperts
from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersExperts

import tpuport
from tpuport.patches import separate_experts

TOKENS, EXPERTS, WIDTH = 9, 4, 8


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _initialized(experts: Any) -> Any:
    generator = torch.Generator().manual_seed(2)
    for parameter in experts.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return experts.eval()


def test_switch() -> None:
    experts = _initialized(
        SwitchTransformersExperts(SwitchTransformersConfig(d_model=WIDTH, d_ff=16, num_experts=EXPERTS))
    )
    # Expert 3 has no token, and the last token no expert: its capacity was used up.
    chosen = torch.nn.functional.one_hot(torch.arange(TOKENS) % 3, EXPERTS)
    chosen[-1] = 0
    arguments = _random(TOKENS, WIDTH), chosen[:, None], _random(TOKENS, 1).sigmoid()
    expected = SwitchTransformersExperts.forward(experts, *arguments)
    torch.testing.assert_close(separate_experts.switch_forward(experts, *arguments), expected)
    assert not expected[-1].any()


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_nllb(dropout: float) -> None:
    config = NllbMoeConfig(d_model=WIDTH, num_experts=EXPERTS, moe_token_dropout=dropout)
    experts = _initialized(NllbMoeExperts(config, 16))
    mask = torch.nn.functional.one_hot(torch.arange(TOKENS) % EXPERTS, EXPERTS)
    arguments = _random(TOKENS, WIDTH), mask, _random(TOKENS, EXPERTS).sigmoid()
    expected = NllbMoeExperts.forward(experts, *arguments)
    torch.testing.assert_close(separate_experts.nllb_forward(experts, *arguments), expected)


def test_dbrx() -> None:
    config = DbrxConfig(
        d_model=WIDTH, ffn_config={"ffn_hidden_size": 16, "moe_num_experts": EXPERTS, "moe_top_k": 2}
    )
    experts = _initialized(DbrxExperts(config.ffn_config))
    # Expert 3 has no token; the numbers of a token's experts are not in order.
    chosen = torch.stack([torch.arange(TOKENS) % 3, (torch.arange(TOKENS) + 1) % 3], dim=1)
    arguments = _random(1, TOKENS, WIDTH), chosen, _random(TOKENS, 2).sigmoid()
    expected = DbrxExperts.forward(experts, *arguments)
    torch.testing.assert_close(separate_experts.dbrx_forward(experts, *arguments), expected)


@pytest.mark.slow  # the layers of each model above
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_generate() -> None:
    config = SwitchTransformersConfig(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_decoder_layers=1, num_heads=2, num_experts=4,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, decoder_start_token_id=0,
    )  # fmt: skip
    reference = SwitchTransformersForConditionalGeneration(config).eval()
    text = torch.arange(3, 15).reshape(2, 6)
    expected = reference.generate(text, max_new_tokens=5)
    tpuport.enable()
    try:
        mesh = tpuport.create_mesh(devices=jax.devices()[:1])
        ported = tpuport.port(copy.deepcopy(reference), mesh=mesh)
        assert torch.equal(ported.generate(text, max_new_tokens=5), expected)
    finally:
        tpuport.disable()
