"""flash_attn's `bert_padding`: padding taken out of a batch and put back.

What is kept has as many rows as the batch, so that shapes do not depend on values: the
tokens come first, in order, and the padding after them. Shapes: B batch, S length.
"""

from typing import Any

import torch
from torch.nn import functional


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Of [B, S, ...] and masks [B, S] of its tokens: the rows, [B * S, ...], their
    places in the flattened batch, cumulative lengths [B + 1], S, and how many tokens
    each sequence has in `attention_mask`.

    Places of padding are negative, counted from the end as an index counts them.
    flash_attn leaves out the padding, and gives the greatest length in place of S.
    """
    kept = attention_mask
    if unused_mask is not None:
        kept = attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    cu_seqlens = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    is_padding = kept.flatten() == 0
    order = torch.argsort(is_padding.to(torch.int32), stable=True)
    indices = torch.where(is_padding[order], order - order.shape[0], order)
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return rows, indices, cu_seqlens, hidden_states.shape[1], used


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows of a tensor at these places."""
    return tensor[indices]


def index_put_first_axis(
    values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int
) -> torch.Tensor:
    """Rows at their places among `first_axis_dim` rows; the others, and those of
    padding, are zeros.
    """
    is_token = (indices >= 0).reshape(-1, *(1,) * (values.ndim - 1))
    kept = torch.where(is_token, values, torch.zeros_like(values))
    return kept.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(
        0, indices % first_axis_dim, kept
    )  # fmt: skip


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """[B, S, ...], of the rows and places that `unpad_input` gives."""
    rows: Any = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.unflatten(0, (batch, seqlen))
