"""Gradients of attention from its saved output and log-sum-exp, in blocks of queries and keys, in plain XLA.

Dao, Fu, Ermon, Rudra, Re: FlashAttention (2022), algorithm 4: the weights of a block are computed again as
exp(score - lse), so that neither scores nor weights are ever stored.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T key/value length, D head dimension,
C of values.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention import blocking, xla_attention
from tpuport.attention.mask import Mask

# Queries and keys of a block at most. Smaller blocks follow a band more closely and stay in a CPU's cache (1,024 takes
# 1.3 to 2.5 times as long as 512 there); larger ones load and store the sums less often.
_EDGE = 512


class _Queries(NamedTuple):
    """What belongs to queries; `delta` is what the softmax takes off the gradient of each of its weights."""

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
    Float[Array, "B H Q D"], Float[Array, "B K T D"], Float[Array, "B K T C"], Float[Array, "#B T"] | None
]:
    """Traced. What `attention_xla`'s two results give back to query, key, value and `mask.bias_BT` (None: no bias).

    Each gradient has the shape and dtype of what it is of; sums are float32. A query whose log-sum-exp is -inf, which
    sees no key, gives and gets zeros whatever its cotangents are. Blocks that a band hides wholly are not computed.

    Args:
        mask: anything but `dense`, which is differentiated through `attention_xla`.
        out_BHQC, lse_BHQ: the two results.
        d_out_BHQC, d_lse_BHQ: their cotangents.
    """
    assert mask.dense is None
    axes = _axes(query_BHQD, key_BKTD, value_BKTC, d_out_BHQC, d_lse_BHQ, *vars(mask).values())
    keys = _Keys(key_BKTD, value_BKTC)
    if mask.keys_BT is not None:
        # Padding may hold anything, and a weight of zero times NaN would be NaN.
        real = mask.keys_BT[:, None, :, None]
        keys = _Keys(*(jnp.where(real, x, 0) for x in keys))
    queries = _queries(query_BHQD, out_BHQC, lse_BHQ, d_out_BHQC, d_lse_BHQ, kv_heads=key_BKTD.shape[1])
    shapes = queries.query_BKGQD.shape, *(x.shape for x in keys), (key_BKTD.shape[0], key_BKTD.shape[2])
    sums = _Gradients(*(_varying(jnp.zeros(shape, jnp.float32), axes) for shape in shapes))
    sums = _sum_blocks(partial(_block, scale=scale, softcap=softcap), queries, keys, mask, sums)
    return (
        _like(query_BHQD, sums.query_BKGQD.reshape(query_BHQD.shape), axes),
        _like(key_BKTD, sums.key_BKTD, axes),
        _like(value_BKTC, sums.value_BKTC, axes),
        None if mask.bias_BT is None else _like(mask.bias_BT, sums.bias_BT, axes),
    )


def _queries(
    query: jax.Array, out: jax.Array, lse: jax.Array, d_out: jax.Array, d_lse: jax.Array, *, kv_heads: int
) -> _Queries:
    seen = lse > -jnp.inf
    d_out = jnp.where(seen[..., None], d_out, 0)
    # The gradient of the log-sum-exp by a score is the weight itself, so its cotangent joins the same term.
    delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1) - jnp.where(
        seen, d_lse, 0.0
    )
    # exp(score - inf) is zero.
    parts = query, jnp.where(seen, lse, jnp.inf), d_out, delta
    batch, heads = lse.shape[:2]
    return _Queries(*(x.reshape(batch, kv_heads, heads // kv_heads, *x.shape[2:]) for x in parts))


def _sum_blocks(
    block: Callable[[_Queries, _Keys, Mask], _Gradients],
    of_queries: _Queries,
    of_keys: _Keys,
    mask: Mask,
    zeros: _Gradients,
) -> _Gradients:
    """Traced. The sum of `block` over all pairs of a block of queries and a block of keys that a band lets meet."""
    *outer, queries = of_queries.lse_BKGQ.shape
    keys = of_keys.key_BKTD.shape[2]
    if not queries or not keys:
        return zeros
    edge = _edge(math.prod(outer))
    rows, columns = min(edge, queries), min(edge, keys)

    def add(i: Any, j: Any, sums: _Gradients) -> _Gradients:
        row, column = jnp.minimum(i * rows, queries - rows), jnp.minimum(j * columns, keys - columns)
        inside = _columns(blocking.rows(mask, row, rows), column, columns)
        part = block(
            _Queries(*(jax.lax.dynamic_slice_in_dim(x, row, rows, 3) for x in of_queries)),
            _Keys(*(jax.lax.dynamic_slice_in_dim(x, column, columns, 2) for x in of_keys)),
            dataclasses.replace(
                inside,
                queries_BQ=_once(inside.queries_BQ, i * rows - row, rows)
                if queries % rows
                else inside.queries_BQ,
                keys_BT=_once(inside.keys_BT, j * columns - column, columns)
                if keys % columns
                else inside.keys_BT,
            ),
        )
        return _Gradients(
            _add(sums.query_BKGQD, part.query_BKGQD, row, 3),
            _add(sums.key_BKTD, part.key_BKTD, column, 2),
            _add(sums.value_BKTC, part.value_BKTC, column, 2),
            _add(sums.bias_BT, part.bias_BT, column, 1),
        )

    def add_row(i: Any, sums: _Gradients) -> _Gradients:
        first, last = _meeting(mask, i * rows, rows, columns, -(-keys // columns))
        return jax.lax.fori_loop(first, last, partial(add, i), sums)

    return jax.lax.fori_loop(0, -(-queries // rows), add_row, zeros)


def _block(queries: _Queries, keys: _Keys, mask: Mask, *, scale: float, softcap: float | None) -> _Gradients:
    """Traced. What the queries given and the keys given have to do with each other."""
    query, lse, d_out, delta = queries
    key, value = keys
    einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = einsum("bkgqd,bktd->bkgqt", query, key) * scale
    slope = None
    if softcap is not None:
        capped = jnp.tanh(scores / softcap)
        scores, slope = softcap * capped, 1.0 - capped * capped
    weights = jnp.exp(_masked(scores, mask) - lse[..., None])
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


def _masked(scores: jax.Array, mask: Mask) -> jax.Array:
    """[B, K, G, Q, T] scores with the bias added, and -inf where a query does not see a key."""
    dense = mask.to_dense(*scores.shape[-2:])
    if dense is None:
        return scores
    dense = dense[:, :, None]
    if dense.dtype == jnp.bool_:
        return jnp.where(dense, scores, -jnp.inf)
    return jnp.where(dense <= jnp.finfo(dense.dtype).min, -jnp.inf, scores + dense)


def _edge(heads: int) -> int:
    """Queries and keys of a block, of which `heads` are computed at a time; whole tiles of the matrix unit if many."""
    edge = min(math.isqrt(xla_attention.SCORES_LIMIT // (4 * heads)), _EDGE)
    return max(edge // 128 * 128 if edge > 128 else edge, 1)


def _meeting(mask: Mask, row: Any, rows: int, columns: int, blocks: int) -> tuple[Any, Any]:
    """First and last (exclusive) block of keys that a band lets the `rows` queries from number `row` on see."""
    position = mask.offset + row
    first = 0 if mask.left is None else jnp.clip((position - mask.left) // columns, 0, blocks)
    if mask.right is None:
        return first, blocks
    return first, jnp.clip((position + rows - 1 + mask.right) // columns + 1, 0, blocks)


def _columns(mask: Mask, first: jax.Array, size: int) -> Mask:
    """Traced. The mask of `size` keys from number `first` on, for all queries."""

    def cut(array: jax.Array | None) -> jax.Array | None:
        return None if array is None else jax.lax.dynamic_slice_in_dim(array, first, size, 1)

    return dataclasses.replace(
        mask,
        offset=mask.offset - first,
        keys_BT=cut(mask.keys_BT),
        key_segments_BT=cut(mask.key_segments_BT),
        bias_BT=cut(mask.bias_BT),
    )


def _once(padding: jax.Array | None, shared: jax.Array, size: int) -> jax.Array:
    """[B or 1, size] padding without the first `shared`: the last block ends with the array, so it may overlap."""
    fresh = (jnp.arange(size) >= shared)[None]
    return fresh if padding is None else padding & fresh


def _add(whole: jax.Array, part: jax.Array, first: jax.Array, axis: int) -> jax.Array:
    before = jax.lax.dynamic_slice_in_dim(whole, first, part.shape[axis], axis)
    return jax.lax.dynamic_update_slice_in_dim(whole, before + part, first, axis)


def _axes(*arrays: Any) -> tuple[str, ...]:
    """Mesh axes that any of the arrays varies over, inside a `shard_map` that checks it; else none."""
    return tuple(
        sorted({axis for x in arrays if isinstance(x, jax.Array) for axis in jax.typeof(x).mat.varying})
    )


def _varying(array: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return jax.lax.pcast(array, axes, to="varying") if axes else array


def _like(primal: jax.Array, gradient: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Traced. The gradient in shape and dtype of what it is of, summed over what that was one of for all."""
    if gradient.shape[0] != primal.shape[0]:
        gradient = gradient.sum(0, keepdims=True)
    shared = tuple(axis for axis in axes if axis not in jax.typeof(primal).mat.varying)
    return (jax.lax.psum(gradient, shared) if shared else gradient).astype(primal.dtype)
