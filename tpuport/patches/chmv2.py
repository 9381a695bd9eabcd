"""CHMv2's depths, whose bins are added in pairs.

Shapes: B images, C bins, H rows, W columns.
"""

from typing import Any

import torch


def mix_depths(self: Any, input: torch.Tensor, bins: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """Traced. As `CHMv2FeaturesToDepth._create_outputs_with_mixlog_norm`, with sums in
    pairs.

    All terms are positive and there are 256 of them, so that adding one after another
    rounds five times as much as torch's sum does.
    """
    logits_BCHW = torch.relu(input)
    shift_B1HW = (-logits_BCHW.amin(dim=1, keepdim=True)).clamp_min(0.0)
    shift_B1HW = (
        shift_B1HW.clamp_max(self._mixlog_max_clamp_value) + self._mixlog_eps_shift
    )
    positive_BCHW = logits_BCHW + shift_B1HW
    total_B1HW = torch.nan_to_num(
        sum_in_pairs(positive_BCHW), nan=1.0, posinf=1.0, neginf=1.0
    )
    weights_BCHW = positive_BCHW / total_B1HW.clamp_min(self._mixlog_eps)
    depths_1C11 = bins.view(1, -1, 1, 1).clamp_min(self._mixlog_eps)
    return sum_in_pairs(weights_BCHW * depths_1C11).clamp_min(self._mixlog_eps) * 8.0


def sum_in_pairs(terms: torch.Tensor) -> torch.Tensor:
    """Traced. The sum over dimension 1, which stays; its rounding error grows with the
    logarithm of the length.
    """
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        pairs = terms[:, :half] + terms[:, half : 2 * half]
        # The last term of an odd number.
        rest = terms[:, 2 * half :]
        terms = torch.cat([pairs, rest], dim=1)
    return terms
