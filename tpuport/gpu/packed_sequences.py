"""Attention over sequences that are laid end to end on one axis, by
`F.scaled_dot_product_attention`.

Shapes are static: where sequences begin and end may be known on the device only. The
mask compares sequence numbers and positions, which tpuport's attention recognizes, so
no array of all pairs is built there. Shapes: N rows of queries, T rows of keys, H query
heads, K key heads, D head dimension, S sequences.
"""

import dataclasses
from typing import Any

import torch
from torch.nn import functional

from tpuport.errors import PortError

# Numbers of padding rows, which no sequence has.
_NO_QUERY, _NO_KEY = -1, -2


@dataclasses.dataclass(frozen=True, eq=False)
class Sequences:
    """Where sequences lie on an axis, in order: [S] first rows, and [S] rows after the
    last. All other rows are padding.
    """

    starts: torch.Tensor
    ends: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """[S], the rows of each."""
        return self.ends - self.starts

    def locate(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Row numbers, the sequence of each, and whether it is not padding: [rows]."""
        row = torch.arange(rows, dtype=self.starts.dtype, device=self.starts.device)
        number = torch.searchsorted(self.starts, row, right=True) - 1
        return row, number, row < self.ends[number]


def sequences_of(queries: torch.Tensor, keys: torch.Tensor) -> list[Sequences]:
    """Those of cumulative lengths [S + 1], as flash_attn has them: of the queries, and
    of the keys. The same tensor gives the same object.

    Raises:
        PortError: there are not as many of both.
    """
    if queries.shape != keys.shape:
        raise PortError(
            f"cumulative lengths {list(queries.shape)} of queries and {list(keys.shape)} of keys",
            where="cu_seqlens_q, cu_seqlens_k",
            fix="give both the same sequences: for each, one query and one key length",
        )
    of_queries = Sequences(queries[:-1], queries[1:])
    if keys is queries:
        return [of_queries, of_queries]
    return [of_queries, Sequences(keys[:-1], keys[1:])]


def window_mask(
    shape: tuple[int, int], offset: int, window: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """The keys that each query attends to, boolean [Q, T]; a negative side of the
    window is unlimited, and query 0 is at the position of key `offset`.
    """
    queries, keys = shape
    left, right = window
    position = torch.arange(queries, device=device).unsqueeze(1) + offset
    distance = torch.arange(keys, device=device).unsqueeze(0) - position
    mask = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        mask &= distance >= -left
    if right >= 0:
        mask &= distance <= right
    return mask


def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: Sequences,
    keys: Sequences,
    window: tuple[int, int] = (-1, -1),
    from_end: bool = True,
    **options: Any,
) -> torch.Tensor:
    """[N, H, D], of queries that attend to the keys of their own sequence: q [N, H, D],
    k and v [T, K, D]. Queries that see no key get zeros.

    Args:
        queries, keys: one object if the sequences lie at the same rows of both.
        window: how many keys before and after its own position a query sees; negative:
            all of them.
        from_end: the last query of a sequence is at the position of its last key; else
            its first query at that of its first key.
        options: of `F.scaled_dot_product_attention`.
    """
    if queries is keys or max(window) < 0:
        q, numbers = _clean(q, queries, _NO_QUERY)
        k, key_numbers = _clean(k, keys, _NO_KEY)
        v, _ = _clean(v, keys, _NO_KEY)
        return _attend(q, k, v, numbers, key_numbers, window, options)
    axis = _common_axis(queries, keys)
    size = q.shape[0] + k.shape[0]
    row, number, _ = queries.locate(q.shape[0])
    q, numbers = _spread(q, queries, axis, size, from_end, _NO_QUERY)
    k, key_numbers = _spread(k, keys, axis, size, from_end, _NO_KEY)
    v, _ = _spread(v, keys, axis, size, from_end, _NO_KEY)
    out = _attend(q, k, v, numbers, key_numbers, window, options)
    # Padding after the last query gets a place without a query, whose result is zeros.
    place = row + _shift(queries, axis, from_end)[number]
    return out[place.clamp(0, size - 1)]


def _clean(
    tensor: torch.Tensor, side: Sequences, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor whose padding is zeros, and the number of each row, `padding` there."""
    _, number, is_real = side.locate(tensor.shape[0])
    return _zero_unless(is_real, tensor), torch.where(is_real, number, padding)


def _zero_unless(kept: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    # Not a product: memory that nobody has written may hold NaN.
    return torch.where(kept[:, None, None], tensor, torch.zeros_like(tensor))


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    numbers: torch.Tensor,
    key_numbers: torch.Tensor,
    window: tuple[int, int],
    options: dict[str, Any],
) -> torch.Tensor:
    """Attention between rows of equal numbers, within the window of their rows."""
    mask = numbers.unsqueeze(1) == key_numbers.unsqueeze(0)
    if max(window) >= 0:
        mask &= window_mask((q.shape[0], k.shape[0]), 0, window, q.device)
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v))
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1], **options
    )  # fmt: skip
    return out.squeeze(0).transpose(0, 1)


def _common_axis(queries: Sequences, keys: Sequences) -> Sequences:
    """An axis on which each sequence has room for its queries and for its keys, so that
    the same distance of rows is the same distance of positions in every sequence.
    """
    lengths = torch.maximum(queries.lengths, keys.lengths)
    ends = lengths.cumsum(0, dtype=lengths.dtype)
    return Sequences(ends - lengths, ends)


def _shift(side: Sequences, axis: Sequences, from_end: bool) -> torch.Tensor:
    """[S], what to add to a row for its place on the common axis."""
    return axis.ends - side.ends if from_end else axis.starts - side.starts


def _spread(
    tensor: torch.Tensor,
    side: Sequences,
    axis: Sequences,
    size: int,
    from_end: bool,
    padding: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor's rows at their places on the common axis, and the number of each place,
    `padding` where there is no row.
    """
    place, number, is_used = axis.locate(size)
    row = place - _shift(side, axis, from_end)[number]
    is_used &= (row >= side.starts[number]) & (row < side.ends[number])
    rows = tensor[row.clamp(0, tensor.shape[0] - 1)]
    return _zero_unless(is_used, rows), torch.where(is_used, number, padding)
