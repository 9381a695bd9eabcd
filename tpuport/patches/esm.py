"""ESMFold's confidence without the position of a maximum, whose number of ties is only
known on the device.
"""

from typing import Any

import torch


def compute_tm(
    logits: torch.Tensor,
    residue_weights: torch.Tensor | None = None,
    max_bin: int = 31,
    no_bins: int = 64,
    eps: float = 1e-8,
    **kwargs: Any,
) -> torch.Tensor:
    """Traced. The predicted TM-score, as `compute_tm` of transformers has it: the best
    over all residues to which the structures are aligned.

    Jumper et al., "Highly accurate protein structure prediction with AlphaFold" (2021),
    supplement 1.9.7.

    Args:
        logits: of the error of each pair of residues, [..., N, N, no_bins].
        residue_weights: [N], all 1 by default.
        max_bin: the last boundary of the bins, in ångström.
        no_bins: the number of bins.
        eps: added to the sum of the weights.
        kwargs: are not read.

    Returns:
        A scalar.
    """
    from transformers.models.esm.openfold_utils import loss

    count = logits.shape[-2]
    if residue_weights is None:
        residue_weights = logits.new_ones(count)
    boundaries = torch.linspace(0, max_bin, steps=no_bins - 1, device=logits.device)
    errors = loss._calculate_bin_centers(boundaries)
    scale = 1.24 * (max(count, 19) - 15) ** (1.0 / 3) - 1.8
    scores = (logits.softmax(-1) / (1 + errors**2 / scale**2)).sum(-1)
    alignments = (scores * residue_weights / (eps + residue_weights.sum())).sum(-1)
    # Of equal ones transformers takes the first, as argmax does.
    best = (alignments * residue_weights).argmax()
    return alignments.flatten()[best]
