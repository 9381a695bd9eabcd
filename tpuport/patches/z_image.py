"""Z-Image's rotary tables, which the first call would leave in the model: the second
would be another program.
"""

from typing import Any

import torch


def rotary_call(self: Any, ids: torch.Tensor) -> torch.Tensor:
    """Traced. `RopeEmbedder.__call__`: the complex tables [N, D] of positions
    [N, axes].

    The original computes its tables in the first call and keeps them. Here they are
    constants of the program, with a row for each position that the model has on an
    axis.
    """
    tables = self.precompute_freqs_cis(self.axes_dims, self.axes_lens, theta=self.theta)
    rows = [table.to(ids.device)[ids[:, axis]] for axis, table in enumerate(tables)]
    return torch.cat(rows, dim=-1)
