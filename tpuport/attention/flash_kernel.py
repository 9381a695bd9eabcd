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
  take, are rounded once more, and by a factor that is not a power of two.
- The values have one more row, of ones: the second product then sums the softmax as
  well. A key whose entry there is zero, and whose value is zero, is masked exactly and
  at no cost, provided that its score is not a new maximum.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values, S rows that a tile of the values' dtype
has.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from tpuport.attention.kernel_body import (
    HIDDEN,
    OptionalOperands,
    attend_block,
    tile_rows,
)
from tpuport.attention.kernel_layout import Layout

NAME = "tpuport_flash"


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
        _pad(value_BKTC, 2, blocks[1]), 3, tile_rows(value_BKTC.dtype)
    ).swapaxes(2, 3)
    optional = OptionalOperands(
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
        weights[:, None], (weights.shape[0], tile_rows(dtype), weights.shape[1])
    )


def _call(
    layout: Layout,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    optional: OptionalOperands,
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

    make_specs = OptionalOperands(along_keys, along_keys, along_queries, along_keys)
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
            attend_block, layout, [operand is not None for operand in optional]
        ),
        grid_spec=grid_spec,
        out_shape=[
            jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in zip(shapes, (query.dtype, jnp.float32), strict=True)
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
    height = width + tile_rows(dtype)
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
