"""CHMv2's depths from bins, against transformers on the CPU and in float64."""

import pytest
import torch
from transformers import CHMv2Config
from transformers.models.chmv2.modeling_chmv2 import CHMv2FeaturesToDepth

import tpuport
from tpuport import compat
from tpuport.verification.bounds import deviation


class Depths(CHMv2FeaturesToDepth):
    """The part that adds, with bins from outside."""

    def forward(self, logits: torch.Tensor, bins: torch.Tensor) -> torch.Tensor:
        return self._create_outputs_with_mixlog_norm(logits, bins)


@pytest.mark.parametrize("count", [256, 37, 2])
def test_depths_are_as_near_to_float64_as_torchs(count: int) -> None:
    torch.manual_seed(0)
    depths = Depths(CHMv2Config())
    # Nearly equal, as those of a new model: what adding rounds has one direction.
    logits, bins = 0.01 * torch.randn(2, count, 24, 24), torch.linspace(0.001, 96.0, count)
    expected, exact = depths(logits, bins), depths(logits.double(), bins.double())
    ours = tpuport.compile(tpuport.port(depths))(logits, bins)
    difference = deviation(compat.to_torch(compat.as_jax(ours)), expected, exact)
    assert difference is None or difference.is_rounding, difference.describe()
