"""HunyuanVideo-1.5's video autoencoder: attention that is causal from frame to frame,
without its mask.

Its own forward writes a mask of S x S numbers one row at a time: thousands of updates
to trace, and 250 MB at 31 latent frames of one tile. A position sees its own frame and
those before, so each frame attends to a prefix of the keys, for which no mask is
needed; what lies behind the prefix is not computed. Shapes: B batch, H heads, C
channels, F frames, h height, w width, S = F h w.
"""

from typing import Any

import torch
from torch.nn import functional


def attention_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Traced. `HunyuanVideo15AttnBlock.forward`, [B, C, F, h, w] -> the same; also for
    B > 1, which its own refuses.
    """
    batch, channels, frames, height, width = x.shape
    normed = self.norm(x)
    query, key, value = (
        project(normed).reshape(batch, channels, -1).transpose(1, 2).unsqueeze(1)
        for project in (self.to_q, self.to_k, self.to_v)
    )
    out = frame_causal_attention(query, key, value, frames)
    out = out.squeeze(1).transpose(1, 2).reshape(batch, channels, frames, height, width)
    return x + self.proj_out(out)


def frame_causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, frames: int
) -> torch.Tensor:
    """Traced. Attention [B, H, S, C] in which a position sees the positions of its own
    frame and of earlier ones.

    Args:
        query, key, value: [B, H, S, C], positions frame by frame.
        frames: F, a divisor of S.
    """
    size = query.shape[2] // frames
    seen = [
        functional.scaled_dot_product_attention(
            query[:, :, end - size : end], key[:, :, :end], value[:, :, :end]
        )
        for end in range(size, query.shape[2] + 1, size)
    ]
    return torch.cat(seen, dim=2)
