"""Reformer's axial positions: each is looked up in the table of its axis, which is not
cut to the positions in use.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from tpuport.patches.switch import with_original


@with_original
def embed_axial_positions(
    original: Callable[..., Any], self: Any, position_ids: torch.Tensor
) -> torch.Tensor:
    """Traced. As `AxialPositionEmbeddings.forward`: positions [B, S] -> [B, S, E]."""
    if self.training or position_ids.shape[1] > math.prod(self.axial_pos_shape):
        # The original refuses what does not fit into the table.
        return original(self, position_ids)
    columns = self.axial_pos_shape[1]
    row = torch.div(position_ids, columns, rounding_mode="floor")
    rows, columns_of_all = self.weights
    return torch.cat(
        [rows[row, 0], columns_of_all[0, position_ids - row * columns]], dim=-1
    )
