"""The attention kernel for TPU: an online softmax over blocks of keys, with the scores
transposed.

FlashAttention (Dao et al., 2022) on the matrix unit, with four choices of its own, each
measured in docs/attention.md:

- Scores are [keys, queries]: maxima are taken along sublanes, which the vector unit
  does without moving lanes, and a row's maximum lies as the next product needs it.
- The next chunk's scores are asked for before this chunk's exponentials, so that the
  matrix unit is not waiting.
- The scale is applied to differences of scores, in the exponent and in float32,
  together with the log2(e) that powers of two need. Scaled queries, which other kernels
  take, are rounded once more, and by a factor that is no power of two.
- The values have one more row, of ones: the second product then sums the softmax as
  well. A key whose entry there is zero, and whose value is zero, is masked exactly and
  at no cost, provided that its score is no new maximum.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values, S rows that a tile of the values' dtype
has.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import Slice
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from tpuport.attention.kernel_layout import LOG2E, Layout

NAME = "tpuport_flash"
# What a hidden key scores: far below any real score, and finite, so that differences of
# two are zero and not NaN.
HIDDEN = -0.7 * float(np.finfo(np.float32).max)
_NT = (((1,), (1,)), ((), ()))
_NN = (((1,), (0,)), ((), ()))


def flash_kernel(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    *,
    scale: float,
    blocks: tuple[int, int, int],
    rounds: int = 1,
    softcap: float | None = None,
    left: int | None = None,
    right: int | None = None,
    offset: Any = 0,
    weights_BT: Float[Array, "#B T"] | None = None,
    bias_BT: Float[Array, "#B T"] | None = None,
    query_segments_BQ: Int[Array, "#B Q"] | None = None,
    key_segments_BT: Int[Array, "#B T"] | None = None,
    vmem_limit_bytes: int | None = None,
    interpret: bool = False,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. (output, natural log of the softmax's sum); a query that sees no key gets
    zeros and -inf.

    Args:
        blocks: rows of queries, keys of a step, keys of a chunk of it; multiples of
            128, the third divides the second.
        rounds: of a loop in each step, each over so many keys; what a step fetches is
            for all of them. 1 with a band.
        left, right, offset: the band, as in `Mask`.
        weights_BT: 1, or 0 for a key to be left out of the softmax's sum. Such a key
            must have a value of zeros, and must not score above every other key that
            the query sees; `padding` ensures both. Not with a band.
        bias_BT: added to a key's scores.
        query_segments_BQ, key_segments_BT: from 0; a query sees the keys of its own
            number.
        vmem_limit_bytes: vector memory that the kernel may take; None leaves the
            compiler's own limit.
    """
    # The scale cannot wait if the scores themselves are needed, or if it would reverse
    # their order.
    late = scale > 0 and softcap is None and bias_BT is None
    # What a step fetches.
    blocks = (blocks[0], rounds * blocks[1], blocks[2])
    layout = Layout(
        blocks,
        query_BHQD.shape[2],
        key_BKTD.shape[2],
        left,
        right,
        scale,
        softcap,
        late,
        rounds,
    )
    # Padded keys repeat the last one, which leaves every maximum as it is. What the
    # last block of queries reads beyond the array reaches no other query, and is not
    # written: only a call of less than a block is padded.
    query = query_BHQD if layout.queries > blocks[0] else _pad(query_BHQD, 2, blocks[0])
    key = _pad(key_BKTD, 2, blocks[1], mode="edge")
    value = _pad(
        _pad(value_BKTC, 2, blocks[1]), 3, _tile_rows(value_BKTC.dtype)
    ).swapaxes(2, 3)
    optional = _OptionalOperands(
        weights=_weights(layout, weights_BT, bias_BT, key_segments_BT, value.dtype),
        bias=_bias(layout, bias_BT),
        query_segments=_segments(query_segments_BQ, blocks[0]),
        key_segments=_segments(key_segments_BT, blocks[1]),
    )
    out, lse = _call(
        layout, query, key, value, optional, offset, vmem_limit_bytes, interpret
    )
    return out[:, :, : layout.queries, : value_BKTC.shape[3]], lse[
        :, :, 0, : layout.queries
    ]


class _OptionalOperands(NamedTuple):
    """Operands that not every call has, each [B or 1, rows, Q or T] or None."""

    weights: Any
    bias: Any
    query_segments: Any
    key_segments: Any


def _tile_rows(dtype: Any) -> int:
    """Rows of a tile: 8 of 32 bits each."""
    return 32 // jnp.dtype(dtype).itemsize


def _pad(x: jax.Array, axis: int, multiple: int, **options: Any) -> jax.Array:
    missing = -x.shape[axis] % multiple
    # A pad of nothing would still be an equation of the program.
    if missing == 0:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    return jnp.pad(x, widths, **options)


def _batch_index(x: jax.Array, batch: Any) -> Any:
    """The index of this row of the batch in an operand [B or 1, ...]."""
    return 0 if x.shape[0] == 1 else batch


def _segments(numbers_BN: jax.Array | None, multiple: int) -> jax.Array | None:
    """[B, n] as [B, 1, n], padded with -1, which no segment has."""
    if numbers_BN is None:
        return None
    return _pad(numbers_BN.astype(jnp.int32), 1, multiple, constant_values=-1)[:, None]


def _bias(layout: Layout, bias_BT: jax.Array | None) -> jax.Array | None:
    if bias_BT is None:
        return None
    # -inf would make differences of two hidden scores NaN.
    bias = jnp.maximum(bias_BT.astype(jnp.float32), HIDDEN)
    return _pad(bias, 1, layout.blocks[1], constant_values=HIDDEN)[:, None]


def _weights(
    layout: Layout, weights_BT: jax.Array | None, bias: Any, segments: Any, dtype: Any
) -> jax.Array | None:
    """The row under the values as [B, S, T]; None if it is all ones, or the tail is
    hidden in another way.
    """
    if weights_BT is None:
        hides_tail = layout.has_band or bias is not None or segments is not None
        if hides_tail or layout.keys % layout.blocks[1] == 0:
            return None
        weights_BT = jnp.ones((1, layout.keys), dtype)
    # The padded keys get 0. A row of the kernel's operand has to be a whole tile.
    weights = _pad(weights_BT.astype(dtype), 1, layout.blocks[1])
    return jnp.broadcast_to(
        weights[:, None], (weights.shape[0], _tile_rows(dtype), weights.shape[1])
    )


def _call(
    layout: Layout,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    optional: _OptionalOperands,
    offset: Any,
    vmem_limit_bytes: int | None,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """The pallas call on padded operands; `value` is [B, K, C, T]."""
    batch, heads, queries, dim = query.shape
    groups, width, (rows, keys, _) = (
        heads // key.shape[1],
        value.shape[2],
        layout.blocks,
    )

    # Indices of the grid: b row of the batch, h query head, i block of queries, j step
    # over the keys; o the offset.
    def query_index(b: Any, h: Any, i: Any, j: Any, o: Any) -> tuple:
        return b, h, i, 0

    def key_block(i: Any, j: Any, o: Any) -> Any:
        # Past the last visible block the index stays, so nothing more is fetched.
        first, last = layout.key_blocks(i, o[0])
        return jnp.maximum(jnp.minimum(first + j, last), 0)

    def along_keys(x: jax.Array) -> pl.BlockSpec:
        def index(b: Any, h: Any, i: Any, j: Any, o: Any) -> tuple:
            return _batch_index(x, b), 0, key_block(i, j, o)

        return pl.BlockSpec((None, x.shape[1], keys), index)

    def along_queries(x: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec(
            (None, 1, rows), lambda b, h, i, j, o: (_batch_index(x, b), 0, i)
        )

    make_specs = _OptionalOperands(along_keys, along_keys, along_queries, along_keys)
    operands, specs = [], []
    for make_spec, operand in zip(make_specs, optional, strict=True):
        if operand is not None:
            operands.append(operand)
            specs.append(make_spec(operand))
    steps = layout.steps(offset)
    # The offset is fetched before the grid starts, because the blocks to fetch depend
    # on it.
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(batch, heads, pl.cdiv(queries, rows), steps),
        in_specs=[
            pl.BlockSpec((None, None, rows, dim), query_index),
            pl.BlockSpec(
                (None, None, keys, dim),
                lambda b, h, i, j, o: (b, lax.div(h, groups), key_block(i, j, o), 0),
            ),
            pl.BlockSpec(
                (None, None, width, keys),
                lambda b, h, i, j, o: (b, lax.div(h, groups), 0, key_block(i, j, o)),
            ),
            *specs,
        ],
        out_specs=[
            pl.BlockSpec((None, None, rows, width), query_index),
            pl.BlockSpec((None, None, 1, rows), lambda b, h, i, j, o: (b, h, 0, i)),
        ],
        scratch_shapes=_scratch_shapes(layout, width, value.dtype),
    )
    shapes = [(*query.shape[:3], width), (batch, heads, 1, queries)]
    call = pl.pallas_call(
        functools.partial(
            _kernel, layout, [operand is not None for operand in optional]
        ),
        grid_spec=grid_spec,
        out_shape=[
            jax.ShapeDtypeStruct(s, d)
            for s, d in zip(shapes, (query.dtype, jnp.float32), strict=True)
        ],
        # Only the steps over the keys of one block of queries depend on one another:
        # they share the scratch memory.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit_bytes,
        ),
        cost_estimate=_cost(layout, query, key, value, steps),
        interpret=interpret,
        name=NAME,
    )
    return call(jnp.asarray(offset, jnp.int32).reshape(1), query, key, value, *operands)


def _scratch_shapes(layout: Layout, width: int, dtype: Any) -> list[Any]:
    """Memory that the steps of a block of queries share: the running maximum and sum,
    and what a round carries.
    """
    rows, _, size = layout.blocks
    height = width + _tile_rows(dtype)
    shapes = [
        pltpu.VMEM((1, rows), jnp.float32),
        pltpu.VMEM((height, rows), jnp.float32),
    ]
    if layout.carries:
        shapes += [
            pltpu.VMEM((size, rows), jnp.float32),
            pltpu.VMEM((height, size), dtype),
        ]
    return shapes


class _Carried(NamedTuple):
    """The chunk that comes next: its scores, and its values with the row under them."""

    scores: Any
    value: Any


def _cost(
    layout: Layout, query: jax.Array, key: jax.Array, value: jax.Array, steps: int
) -> pl.CostEstimate:
    """Work over the blocks that are visited; XLA cannot look into a kernel."""
    batch, heads, queries, dim = query.shape
    rows, keys, _ = layout.blocks
    row_blocks = pl.cdiv(queries, rows)
    pairs = batch * heads * row_blocks * rows * steps * keys
    width = value.shape[2]
    read = query.size + batch * heads * row_blocks * steps * keys * (dim + width)
    return pl.CostEstimate(
        flops=2 * pairs * (dim + width),
        transcendentals=pairs,
        bytes_accessed=(read + batch * heads * queries * width) * query.dtype.itemsize,
    )


def _kernel(
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
    optional = _OptionalOperands(
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
    optional: _OptionalOperands,
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
            ones = jnp.ones((_tile_rows(value_ref.dtype), size), value_ref.dtype)
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
    optional: _OptionalOperands,
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
