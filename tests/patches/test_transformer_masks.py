"""torch.nn's transformer layers with masks as people pass them, beside torch on the CPU."""

import copy

import pytest
import torch
from torch import nn

import tpuport

MASK = nn.Transformer.generate_square_subsequent_mask(5)
PADDING = torch.arange(5) >= torch.tensor([[5], [3]])
MASKS = {
    "numbers": {"mask": MASK},
    "booleans, and padding": {"mask": MASK.isinf(), "src_key_padding_mask": PADDING},
    "another than causal": {"mask": MASK.isinf().T},
    "causal by name": {"mask": MASK, "is_causal": True},
}


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()


@pytest.mark.parametrize("masks", MASKS)
def test_an_encoder(encoder: nn.Module, masks: str) -> None:
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = encoder(x, **MASKS[masks])
    ported = tpuport.port(copy.deepcopy(encoder))
    torch.testing.assert_close(ported(x, **MASKS[masks]).cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_transformer_with_a_causal_decoder() -> None:
    torch.manual_seed(0)
    model, x = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = model(x, x, tgt_mask=MASK)
    ported = tpuport.port(copy.deepcopy(model))
    torch.testing.assert_close(ported(x, x, tgt_mask=MASK).cpu(), expected, rtol=1e-4, atol=1e-5)
