"""Mochi's attention in a form that can be traced: the original looks up the valid text
tokens of each sample.

Shapes: B batch, N video tokens, T text tokens, E model width, H heads, D head
dimension.
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
    """Traced. `MochiAttnProcessor2_0.__call__`: video [B, N, E] and text [B, T, E] ->
    the same two shapes.

    Text tokens come out with the valid ones first, and zeros (before the last
    projection) for the others.

    Args:
        attention_mask: [B, T], nonzero for valid tokens.
        image_rotary_emb: cos and sin, [N, H, D / 2].
    """
    video_tokens = hidden_states.shape[1]
    video = _project(
        hidden_states, attn, ("to_q", "to_k", "to_v"), ("norm_q", "norm_k")
    )
    names = ("add_q_proj", "add_k_proj", "add_v_proj")
    text = _project(
        encoder_hidden_states, attn, names, ("norm_added_q", "norm_added_k")
    )
    if image_rotary_emb is not None:
        query, key, value = video
        video = (
            _rotate(query, *image_rotary_emb),
            _rotate(key, *image_rotary_emb),
            value,
        )
    # Joined, so that they are sorted once.
    joined = torch.cat([x.flatten(2) for x in text], dim=-1)
    joined, valid = valid_first([joined], [attention_mask])
    text = tuple(x.unflatten(2, (attn.heads, -1)) for x in joined.chunk(3, dim=-1))
    query, key, value = (
        torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(video, text, strict=True)
    )
    mask = functional.pad(valid, (video_tokens, 0), value=True)[:, None, None, :]
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    out = out.transpose(1, 2).flatten(2)
    video_out = out[:, :video_tokens]
    for layer in attn.to_out[:2]:
        video_out = layer(video_out)
    text_out = out[:, video_tokens:]
    text_out = torch.where(valid.unsqueeze(-1), text_out, torch.zeros_like(text_out))
    # The last block has no projection for text: nothing reads its text tokens.
    if hasattr(attn, "to_add_out"):
        text_out = attn.to_add_out(text_out)
    return video_out, text_out


def _project(
    states: torch.Tensor, attn: Any, names: tuple[str, ...], norms: tuple[str, ...]
) -> _Streams:
    """Query, key and value [B, tokens, H, D] of a stream."""
    query, key, value = (
        getattr(attn, name)(states).unflatten(2, (attn.heads, -1)) for name in names
    )
    query_norm, key_norm = (getattr(attn, norm) for norm in norms)
    if query_norm is not None:
        query = query_norm(query)
    if key_norm is not None:
        key = key_norm(key)
    return query, key, value


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate adjacent pairs of [B, N, H, D] by their angles, in float32."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    turned = (
        (even * cos - odd * sin).to(x.dtype),
        (even * sin + odd * cos).to(x.dtype),
    )
    return torch.stack(turned, dim=-1).flatten(-2)
