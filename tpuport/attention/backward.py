"""Gradients of attention from its saved output and log-sum-exp, in blocks of queries
and keys, in plain XLA.

Dao, Fu, Ermon, Rudra, Re: FlashAttention (2022), algorithm 4: the weights of a block
are computed again as exp(score - lse), so that neither scores nor weights are ever
stored.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T
key/value length, D head dimension, C of values.
"""

import dataclasses
import math
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention import xla_attention
from tpuport.attention.mask import Mask, intersect
from tpuport.attention.reference import mask_scores

# Most queries and keys of a block. Smaller blocks follow a band more closely and stay
# in a CPU's cache (1,024 takes 1.3 to 2.5 times as long as 512 there); larger ones load
# and store the sums less often.
_MAX_EDGE: Final = 512


class _Queries(NamedTuple):
    """Arrays along the queries; `delta` is what the softmax subtracts from the gradient
    of each of its weights.
    """

    query_BKGQD: jax.Array
    lse_BKGQ: jax.Array
    d_out_BKGQC: jax.Array
    delta_BKGQ: jax.Array


class _Keys(NamedTuple):
    key_BKTD: jax.Array
    value_BKTC: jax.Array


class _Gradients(NamedTuple):
    """In float32."""

    query_BKGQD: jax.Array
    key_BKTD: jax.Array
    value_BKTC: jax.Array
    bias_BT: jax.Array


def backward(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    out_BHQC: Float[Array, "B H Q C"],
    lse_BHQ: Float[Array, "B H Q"],
    d_out_BHQC: Float[Array, "B H Q C"],
    d_lse_BHQ: Float[Array, "B H Q"],
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[
    Float[Array, "B H Q D"],
    Float[Array, "B K T D"],
    Float[Array, "B K T C"],
    Float[Array, "#B T"] | None,
]:
    """Traced. Gradients of query, key, value and `mask.bias_BT` (None: no bias) from
    those of the two results.

    Each gradient has the shape and dtype of its array; sums are float32. A query whose
    log-sum-exp is -inf, which sees no key, gives and gets zeros whatever its cotangents
    are. Blocks that a band hides completely are not computed.

    Args:
        mask: anything but `dense`, which is differentiated through `attention_xla`.
        out_BHQC, lse_BHQ: the two results.
        d_out_BHQC, d_lse_BHQ: their cotangents.
    """
    assert mask.dense is None
    axes = _varying_axes(
        query_BHQD, key_BKTD, value_BKTC, d_out_BHQC, d_lse_BHQ, *vars(mask).values()
    )
    keys = _Keys(key_BKTD, value_BKTC)
    if mask.keys_BT is not None:
        # Padding may hold anything, and a weight of zero times NaN would be NaN.
        is_real = mask.keys_BT[:, None, :, None]
        keys = _Keys(*(jnp.where(is_real, x, 0) for x in keys))
    queries = _prepare_queries(
        query_BHQD, out_BHQC, lse_BHQ, d_out_BHQC, d_lse_BHQ, kv_heads=key_BKTD.shape[1]
    )
    batch, _, length, _ = key_BKTD.shape
    shapes = (
        queries.query_BKGQD.shape,
        key_BKTD.shape,
        value_BKTC.shape,
        (batch, length),
    )
    zeros = [jnp.zeros(shape, jnp.float32) for shape in shapes]
    if axes:
        zeros = [jax.lax.pcast(array, axes, to="varying") for array in zeros]
    sums = _sum_blocks(
        queries, keys, mask, _Gradients(*zeros), scale=scale, softcap=softcap
    )
    return (
        _cast_like(query_BHQD, sums.query_BKGQD.reshape(query_BHQD.shape), axes),
        _cast_like(key_BKTD, sums.key_BKTD, axes),
        _cast_like(value_BKTC, sums.value_BKTC, axes),
        None if mask.bias_BT is None else _cast_like(mask.bias_BT, sums.bias_BT, axes),
    )


def _prepare_queries(
    query: jax.Array,
    out: jax.Array,
    lse: jax.Array,
    d_out: jax.Array,
    d_lse: jax.Array,
    *,
    kv_heads: int,
) -> _Queries:
    sees_a_key = lse > -jnp.inf
    d_out = jnp.where(sees_a_key[..., None], d_out, 0)
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)
    # The gradient of the log-sum-exp by a score is the weight itself, so its cotangent
    # joins the same term.
    delta -= jnp.where(sees_a_key, d_lse, 0.0)
    # exp(score - inf) is a weight of zero.
    lse = jnp.where(sees_a_key, lse, jnp.inf)
    batch, heads = lse.shape[:2]

    def group(array: jax.Array) -> jax.Array:
        return array.reshape(batch, kv_heads, heads // kv_heads, *array.shape[2:])

    return _Queries(*map(group, (query, lse, d_out, delta)))


def _sum_blocks(
    queries: _Queries,
    keys: _Keys,
    mask: Mask,
    zeros: _Gradients,
    *,
    scale: float,
    softcap: float | None,
) -> _Gradients:
    """Traced. The sum over all pairs of a block of queries and a block of keys that the
    band does not separate.
    """
    batch, kv_heads, groups, query_length = queries.lse_BKGQ.shape
    key_length = keys.key_BKTD.shape[2]
    if not query_length or not key_length:
        return zeros
    edge = _block_edge(batch * kv_heads * groups)
    rows, columns = min(edge, query_length), min(edge, key_length)

    def add_block(i: Any, j: Any, sums: _Gradients) -> _Gradients:
        # The last block ends with the array, so it may overlap the one before.
        row = jnp.minimum(i * rows, query_length - rows)
        column = jnp.minimum(j * columns, key_length - columns)
        block_mask = mask.slice_queries(row, rows).slice_keys(column, columns)
        if query_length % rows:
            is_new = _skip_first(i * rows - row, rows)
            block_mask = dataclasses.replace(
                block_mask, queries_BQ=intersect(block_mask.queries_BQ, is_new)
            )
        if key_length % columns:
            is_new = _skip_first(j * columns - column, columns)
            block_mask = dataclasses.replace(
                block_mask, keys_BT=intersect(block_mask.keys_BT, is_new)
            )
        gradients = _block_gradients(
            _Queries(*(jax.lax.dynamic_slice_in_dim(x, row, rows, 3) for x in queries)),
            _Keys(*(jax.lax.dynamic_slice_in_dim(x, column, columns, 2) for x in keys)),
            block_mask, scale=scale, softcap=softcap,
        )  # fmt: skip
        return _Gradients(
            _add_slice(sums.query_BKGQD, gradients.query_BKGQD, row, 3),
            _add_slice(sums.key_BKTD, gradients.key_BKTD, column, 2),
            _add_slice(sums.value_BKTC, gradients.value_BKTC, column, 2),
            _add_slice(sums.bias_BT, gradients.bias_BT, column, 1),
        )

    def add_row(i: Any, sums: _Gradients) -> _Gradients:
        first, last = _visible_blocks(
            mask, i * rows, rows, columns, -(-key_length // columns)
        )
        return jax.lax.fori_loop(first, last, partial(add_block, i), sums)

    return jax.lax.fori_loop(0, -(-query_length // rows), add_row, zeros)


def _block_gradients(
    queries: _Queries, keys: _Keys, mask: Mask, *, scale: float, softcap: float | None
) -> _Gradients:
    """Traced. What one block of queries and one block of keys contribute."""
    query, lse, d_out, delta = queries
    key, value = keys
    einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = einsum("bkgqd,bktd->bkgqt", query, key) * scale
    slope = None
    if softcap is not None:
        capped = jnp.tanh(scores / softcap)
        scores, slope = softcap * capped, 1.0 - capped * capped
    dense = mask.to_dense(*scores.shape[-2:])
    if dense is not None:
        scores = mask_scores(scores, dense)
    weights = jnp.exp(scores - lse[..., None])
    d_scores = weights * (einsum("bkgqc,bktc->bkgqt", d_out, value) - delta[..., None])
    d_bias = d_scores.sum((1, 2, 3))
    if slope is not None:
        d_scores = d_scores * slope
    d_scores = d_scores.astype(query.dtype)
    return _Gradients(
        einsum("bkgqt,bktd->bkgqd", d_scores, key) * scale,
        einsum("bkgqt,bkgqd->bktd", d_scores, query) * scale,
        einsum("bkgqt,bkgqc->bktc", weights.astype(d_out.dtype), d_out),
        d_bias,
    )


def _block_edge(heads: int) -> int:
    """Queries and keys of a block that is computed for `heads` heads at a time."""
    edge = min(math.isqrt(xla_attention.SCORES_LIMIT // (4 * heads)), _MAX_EDGE)
    # Whole tiles of the matrix unit.
    if edge > 128:
        edge = edge // 128 * 128
    return max(edge, 1)


def _visible_blocks(
    mask: Mask, row: Any, rows: int, columns: int, blocks: int
) -> tuple[Any, Any]:
    """First and last (exclusive) block of keys of which `rows` queries from index `row`
    on see any.
    """
    first: Any = 0
    last: Any = blocks
    position = mask.offset + row
    if mask.left is not None:
        first = jnp.clip((position - mask.left) // columns, 0, blocks)
    if mask.right is not None:
        last = jnp.clip((position + rows - 1 + mask.right) // columns + 1, 0, blocks)
    return first, last


def _skip_first(count: jax.Array, size: int) -> jax.Array:
    """[1, size], False for the first `count`."""
    return (jnp.arange(size) >= count)[None]


def _add_slice(
    whole: jax.Array, part: jax.Array, first: jax.Array, axis: int
) -> jax.Array:
    before = jax.lax.dynamic_slice_in_dim(whole, first, part.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(whole, before + part, first, axis)


def _varying_axes(*values: Any) -> tuple[str, ...]:
    """Mesh axes over which any of the arrays varies, inside a `shard_map` that checks
    this; else none.
    """
    arrays = [value for value in values if isinstance(value, jax.Array)]
    return tuple(
        sorted(set().union(*(jax.typeof(array).mat.varying for array in arrays)))
    )


def _cast_like(
    primal: jax.Array, gradient: jax.Array, axes: tuple[str, ...]
) -> jax.Array:
    """Traced. The gradient in shape and dtype of its array, summed over batch rows and
    devices that share the array.
    """
    # A bias may have one row for the whole batch.
    if gradient.shape[0] != primal.shape[0]:
        gradient = gradient.sum(0, keepdims=True)
    shared = tuple(axis for axis in axes if axis not in jax.typeof(primal).mat.varying)
    # Every device has computed what its own part of the queries or keys contributes.
    if shared:
        gradient = jax.lax.psum(gradient, shared)
    return gradient.astype(primal.dtype)
