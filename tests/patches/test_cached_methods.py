"""A position table that transformers caches for all models of a class, in programs of several."""

import copy

import pytest
import torch
from transformers.models.maskformer.modeling_maskformer import MaskFormerSinePositionEmbedding

import tpuport


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.table = MaskFormerSinePositionEmbedding(num_position_features=4, normalize=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.table(x.shape, x.device, x.dtype)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_each_program_computes_its_own() -> None:
    x = torch.randn(2, 8, 3, 5)
    model = Positions()
    expected = model(x)
    for ported in (tpuport.port(copy.deepcopy(model)), tpuport.port(copy.deepcopy(model))):
        torch.testing.assert_close(ported(x).cpu(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
