"""Attention for a CPU: the definition on one head and one block of queries after the other, each within its cache.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D head dimension, C of values,
N blocks of queries.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention.blocking import join, rows, starts
from tpuport.attention.mask import Mask
from tpuport.attention.reference import attention_with_lse

# Bytes of float32 scores of all heads, from which on cutting pays. Below them the whole is in the cache as well.
WORTHWHILE = 8 * 2**20
# Bytes of float32 scores that a block may have. On two cores of an EPYC, 6 heads over 3,400 keys take 121 ms with 12 MB
# (123 with 5 MB, 148 with 3 MB, 155 with 46 MB), 341 where nothing is cut; torch's own takes 135.
BLOCK = 8 * 2**20


def worthwhile(batch: int, heads: int, queries: int, keys: int) -> bool:
    """Whether the scores of all heads together are too many for a CPU's cache."""
    return batch * heads * queries * keys * 4 >= WORTHWHILE


def attention_by_head(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. `attention_with_lse` on the dense form of any mask, a head and some queries at a time.

    Results have the shapes [B, H, Q, C], in the query's dtype, and [B, H, Q], float32: the natural logarithm of the
    sum that the softmax divides by. Gradients compute each block again.
    """
    batch, heads, queries, dim = query_BHQD.shape
    kv_heads, keys, width = value_BKTC.shape[1:]
    size = _queries(queries, keys)
    first = starts(queries, size)
    # The loop's gradient sums the blocks' in the dtype of what the loop is given. XLA removes the two casts.
    wide = jnp.promote_types(query_BHQD.dtype, jnp.float32)
    all_keys, all_values = key_BKTD.astype(wide), value_BKTC.astype(wide)

    @jax.checkpoint
    def block(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        pair, start = index // len(first), first[index % len(first)]
        row, head = pair // heads, pair % heads
        group = head // (heads // kv_heads)
        query = jax.lax.dynamic_slice(query_BHQD, (row, head, start, 0), (1, 1, size, dim))
        key = jax.lax.dynamic_slice(all_keys, (row, group, 0, 0), (1, 1, keys, dim)).astype(key_BKTD.dtype)
        value = jax.lax.dynamic_slice(all_values, (row, group, 0, 0), (1, 1, keys, width))
        dense = rows(_of(mask, row, head), start, size).to_dense(size, keys)
        out, lse = attention_with_lse(
            query, key, value.astype(value_BKTC.dtype), dense, scale=scale, softcap=softcap
        )
        return out[0, 0], lse[0, 0]

    out, lse = jax.lax.map(block, jnp.arange(batch * heads * len(first), dtype=jnp.int32))
    return tuple(
        join(jnp.moveaxis(blocks.reshape(batch, heads, len(first), size, *blocks.shape[2:]), 2, 0), queries)
        for blocks in (out, lse)
    )  # type: ignore[return-value]


def _queries(queries: int, keys: int) -> int:
    """Queries of one block: all blocks alike, as few as `BLOCK` allows."""
    blocks = -(-queries * keys * 4 // BLOCK)
    return -(-queries // max(1, min(blocks, queries)))


def _of(mask: Mask, row: jax.Array, head: jax.Array) -> Mask:
    """Traced. The mask of one head of one row of the batch."""

    def cut(array: jax.Array | None, axis: int, index: jax.Array) -> jax.Array | None:
        if array is None or array.shape[axis] == 1:
            return array
        return jax.lax.dynamic_slice_in_dim(array, index, 1, axis)

    names = ("keys_BT", "queries_BQ", "query_segments_BQ", "key_segments_BT", "bias_BT")
    parts = {name: cut(getattr(mask, name), 0, row) for name in names}
    return dataclasses.replace(mask, **parts, dense=cut(cut(mask.dense, 0, row), 1, head))
