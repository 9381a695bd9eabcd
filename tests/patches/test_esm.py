"""ESMFold's predicted TM-score on the device, against transformers' own on the CPU."""

import pytest
import torch
from transformers.models.esm.openfold_utils import loss

import tpuport
from tpuport.patches.esm import compute_tm


@pytest.mark.parametrize("count", [4, 25])
@pytest.mark.parametrize("has_weights", [False, True])
def test_score(count: int, has_weights: bool) -> None:
    torch.manual_seed(count)
    logits = torch.randn(count, count, 64)
    # The two best alignments are equal.
    logits[3] = logits[1] = logits[1] + torch.linspace(3, 0, 64)
    weights = torch.rand(count) if has_weights else None
    expected = loss.compute_tm(logits, weights)
    score = tpuport.compile(compute_tm)(logits, weights)
    torch.testing.assert_close(score.cpu(), expected)
