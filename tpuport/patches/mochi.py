"""Mochi's attention, in a form that can be traced: it looks up its valid text tokens sample by sample.

Shapes: B batch, N video tokens, T text tokens, E model width, H heads, D head dimension.
"""

from typing import Any

import torch
from torch.nn import functional

from tpuport.patches.reordering import valid_first

_Streams = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attention_call(
    self: Any,
    attn: Any,
    hidden_states: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Traced. `MochiAttnProcessor2_0.__call__`: video [B, N, E] and text [B, T, E] -> the same two, attended to.

    Text tokens come out with the valid ones first, and zeros (before the last projection) for the others.

    Args:
        attention_mask: [B, T], what is not zero is valid.
        image_rotary_emb: cos and sin, [N, H, D / 2].
    """
    video = _projected(hidden_states, attn, ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"))
    names = ("add_q_proj", "add_k_proj", "add_v_proj")
    text = _projected(encoder_hidden_states, attn, names, ("norm_added_q", "norm_added_k"))
    if image_rotary_emb is not None:
        video = (*(_rotated(x, *image_rotary_emb) for x in video[:2]), video[2])
    joined = torch.cat([x.flatten(2) for x in text], dim=-1)
    joined, valid = valid_first([joined], [attention_mask])
    text = tuple(x.unflatten(2, (attn.heads, -1)) for x in joined.chunk(3, dim=-1))
    query, key, value = (torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(video, text, strict=True))
    mask = functional.pad(valid, (hidden_states.shape[1], 0), value=True)[:, None, None, :]
    out = (
        functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
    )
    seen, told = out[:, : hidden_states.shape[1]], out[:, hidden_states.shape[1] :]
    told = torch.where(valid.unsqueeze(-1), told, torch.zeros_like(told))
    seen = attn.to_out[1](attn.to_out[0](seen))
    return seen, attn.to_add_out(told) if hasattr(attn, "to_add_out") else told


def _projected(states: torch.Tensor, attn: Any, names: tuple[str, ...], norms: tuple[str, ...]) -> _Streams:
    """Query, key and value [B, tokens, H, D] of a stream."""
    query, key, value = (getattr(attn, name)(states).unflatten(2, (attn.heads, -1)) for name in names)
    query, key = (
        x if (norm := getattr(attn, name)) is None else norm(x)
        for x, name in zip((query, key), norms, strict=True)
    )
    return query, key, value


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Neighbouring pairs of [B, N, H, D] turned by their angle, in float32."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    turned = ((even * cos - odd * sin).to(x.dtype), (even * sin + odd * cos).to(x.dtype))
    return torch.stack(turned, dim=-1).flatten(-2)
