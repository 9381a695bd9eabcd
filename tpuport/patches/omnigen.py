"""OmniGen's rotary table: long and short prompts have other factors, which are chosen
in the trace.
"""

import math
from typing import Any

import torch


def rotary_forward(
    self: Any, hidden_states: torch.Tensor, position_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Traced. `OmniGenSuScaledRotaryEmbedding.forward`: cosines and sines [S, D] for
    positions [B, S].

    As in the original, the positions of the first row are those of every row.
    """
    device = hidden_states.device
    long, short = (
        torch.tensor(factors, dtype=torch.float32, device=device)
        for factors in (self.long_factor, self.short_factor)
    )
    is_long = position_ids.max() + 1 > self.original_max_position_embeddings
    factors = torch.where(is_long, long, short)
    exponents = torch.arange(0, self.dim, 2, device=device).float() / self.dim
    frequencies = 1.0 / (factors * self.base**exponents)
    angles = position_ids[0, :, None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * _magnitude(self), angles.sin() * _magnitude(self)


def _magnitude(self: Any) -> float:
    """What the table is multiplied by in a model whose context was extended."""
    scale = self.max_position_embeddings / self.original_max_position_embeddings
    if scale <= 1.0:
        return 1.0
    return math.sqrt(
        1 + math.log(scale) / math.log(self.original_max_position_embeddings)
    )
