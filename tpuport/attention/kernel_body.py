"""The kernel's own code: one block of queries against one block of keys."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import Slice

from tpuport.attention.kernel_layout import LOG2E, Layout

# What a hidden key scores: far below any real score, and finite, so that differences of
# two are zero and not NaN.
HIDDEN = -0.7 * float(np.finfo(np.float32).max)
_NT = (((1,), (1,)), ((), ()))
_NN = (((1,), (0,)), ((), ()))


class OptionalOperands(NamedTuple):
    """Operands that not every call has, each [B or 1, rows, Q or T] or None."""

    weights: Any
    bias: Any
    query_segments: Any
    key_segments: Any


class _Carried(NamedTuple):
    """The chunk that comes next: its scores, and its values with the row under them."""

    scores: Any
    value: Any


def tile_rows(dtype: Any) -> int:
    """Rows of a tile: 8 of 32 bits each."""
    return 32 // jnp.dtype(dtype).itemsize


def attend_block(
    layout: Layout,
    is_present: list[bool],
    offset_ref: Any,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    *refs: Any,
) -> None:
    """One block of queries against one block of keys; value_ref is [C, keys]."""
    remaining = iter(refs)
    optional = OptionalOperands(
        *(next(remaining) if present else None for present in is_present)
    )
    out_ref, lse_ref, top_ref, sum_ref, *carried_refs = remaining
    carried = _Carried(*carried_refs) if layout.carries else None
    block, step = pl.program_id(2), pl.program_id(3)
    first, last = layout.key_blocks(block, offset_ref[0])

    @pl.when(step == 0)
    def _start() -> None:
        top_ref[...] = jnp.full_like(top_ref, HIDDEN)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        # A chunk that adds nothing.
        if carried is not None:
            carried.scores[...] = jnp.full_like(carried.scores, HIDDEN)
            carried.value[...] = jnp.zeros_like(carried.value)

    run = functools.partial(
        _block,
        layout,
        query_ref,
        key_ref,
        value_ref,
        optional,
        top_ref,
        sum_ref,
        carried,
    )
    if not layout.has_band:
        _repeat(layout.rounds, functools.partial(run, None))
    else:
        rows, keys, _ = layout.blocks
        key_block = first + step
        position = block * rows + offset_ref[0]
        key = key_block * keys
        is_whole = (key >= layout.first_key(position + rows - 1)) & (
            key + keys - 1 <= layout.last_key(position)
        )
        # Comparing key by key costs vector work that a block without an edge of the
        # band does not need.
        pl.when((key_block <= last) & is_whole)(lambda: run(None, 0))
        pl.when((key_block <= last) & ~is_whole)(lambda: run((key, position), 0))

    @pl.when(step == pl.num_programs(3) - 1)
    def _finish() -> None:
        width = value_ref.shape[0]
        top, sums = top_ref[...], sum_ref[...]
        if carried is not None:
            top, sums = _add_chunk(
                layout, carried.scores[...], carried.value[...], top, sums
            )
        total = sums[width : width + 1, :]
        # All scores are hidden, or all weights are 0.
        is_empty = (top <= HIDDEN / 2) | (total == 0.0)
        total = jnp.where(is_empty, 1.0, total)
        out = jnp.where(is_empty, 0.0, sums[:width, :] / total)
        out_ref[...] = out.T.astype(out_ref.dtype)
        lse_ref[...] = jnp.where(
            is_empty, -jnp.inf, top * (layout.unit / LOG2E) + jnp.log(total)
        )


def _repeat(rounds: int, run: Callable[[Any], None]) -> None:
    """Run something in each round of a loop, with the round's number."""
    if rounds == 1:
        run(0)
        return
    lax.fori_loop(0, rounds, lambda index, _: run(index), None)


def _block(
    layout: Layout,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    optional: OptionalOperands,
    top_ref: Any,
    sum_ref: Any,
    carried: _Carried | None,
    edge: tuple[Any, Any] | None,
    index: int | jax.Array,
) -> None:
    """The online softmax over the chunks of one round.

    Args:
        index: of the round.
        edge: (first key, key position of the first query) of a block on the edge of the
            band; None: all is visible.
    """
    size = layout.blocks[2]
    chunks = layout.blocks[1] // layout.rounds // size
    query = query_ref[...]

    def keys_of(chunk: int) -> slice | Slice:
        start = (index * chunks + chunk) * size
        if not isinstance(start, int):
            start = pl.multiple_of(start, size)
        return pl.ds(start, size)

    def scores(chunk: int) -> jax.Array:
        return _scores(layout, query, key_ref, optional, edge, keys_of(chunk))

    def value(chunk: int) -> jax.Array:
        if carried is not None and chunk < 0:
            return carried.value[...]
        keys = keys_of(chunk)
        if optional.weights is None:
            ones = jnp.ones((tile_rows(value_ref.dtype), size), value_ref.dtype)
        else:
            ones = optional.weights[:, keys]
        return jnp.concatenate([value_ref[:, keys], ones], axis=0)

    top, total = top_ref[...], sum_ref[...]
    first = 1
    if carried is None:
        current = scores(0)
    else:
        first, current = 0, carried.scores[...]
    for chunk in range(first, chunks):
        # Before the exponentials of the chunk before, so that the matrix unit does not
        # wait for them.
        next_scores = scores(chunk)
        top, total = _add_chunk(layout, current, value(chunk - 1), top, total)
        current = next_scores
    if carried is None:
        top, total = _add_chunk(layout, current, value(chunks - 1), top, total)
    else:
        carried.scores[...], carried.value[...] = current, value(chunks - 1)
    top_ref[...], sum_ref[...] = top, total


def _add_chunk(
    layout: Layout,
    scores: jax.Array,
    value: jax.Array,
    top: jax.Array,
    total: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The running maximum and sum after one more chunk."""
    new_top = jnp.maximum(top, scores.max(axis=0, keepdims=True))
    weights = jnp.exp2((scores - new_top) * layout.unit).astype(value.dtype)
    return new_top, total * jnp.exp2((top - new_top) * layout.unit) + _dot(
        value, weights, _NN
    )


def _scores(
    layout: Layout,
    query: jax.Array,
    key_ref: Any,
    optional: OptionalOperands,
    edge: tuple[Any, Any] | None,
    keys: slice | Slice,
) -> jax.Array:
    """Scores [keys, queries] of a slice of the keys, in units of `layout.unit`."""
    scores = _dot(key_ref[keys, :], query, _NT)
    # A soft cap needs the scaled scores themselves, and so does a bias.
    if layout.softcap is not None:
        scores = jnp.tanh(scores * (layout.scale / layout.softcap)) * layout.softcap
    elif not layout.late:
        scores *= layout.scale
    if optional.bias is not None:
        scores += _column(optional.bias[:, keys])
    conditions = []
    if optional.key_segments is not None:
        conditions.append(
            _column(optional.key_segments[:, keys]) == optional.query_segments[...]
        )
    if edge is not None:
        first_key, position = edge
        conditions.append(_band(layout, first_key + keys.start, position, scores.shape))
    if not conditions:
        return scores
    return jnp.where(functools.reduce(jnp.logical_and, conditions), scores, HIDDEN)


def _column(row: jax.Array) -> jax.Array:
    """[1, n] as [n, 1]."""
    # Mosaic transposes whole tiles, of 8 rows.
    return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]


def _band(
    layout: Layout, first_key: Any, position: Any, shape: tuple[int, ...]
) -> jax.Array:
    """Which keys [n, 1] the queries [1, m] see, the first of them at `first_key` and at
    key position `position`.
    """
    key = lax.broadcasted_iota(jnp.int32, shape, 0)
    distance = key - lax.broadcasted_iota(jnp.int32, shape, 1)
    start = position - first_key
    parts = []
    if layout.right is not None:
        parts.append(distance <= start + layout.right)
    if layout.left is not None:
        parts.append(distance >= start - layout.left)
    # A call with a band has no weights that would leave out the padding after the last
    # key.
    if layout.keys % layout.blocks[1]:
        parts.append(key < layout.keys - first_key)
    return functools.reduce(jnp.logical_and, parts)


def _dot(a: jax.Array, b: jax.Array, dimensions: Any) -> jax.Array:
    return lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)
