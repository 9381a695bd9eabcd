"""Attention in plain XLA in bounded memory: the definition, over blocks of queries where the scores would be large.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D head dimension, C of values.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention.mask import Mask
from tpuport.attention.reference import attention_with_lse

# Bytes of float32 scores that one block may have; three arrays of this size live at once, seven where gradients are
# computed. Below it nothing is cut, so that XLA sees, and can shard, plain matmuls. The limit that is fastest on a CPU
# is smaller (its cache: 16 MiB, 8% faster than 64 MiB; one piece of 512 MiB takes 2.6 times as long). A TPU wants
# many queries for each time that it reads all keys: here Llama 3 8B's 32 heads over 8,192 keys have 128 of them, one
# tile of its matrix unit.
SCORES_LIMIT = 128 * 2**20


def attention_xla(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. `attention_with_lse` on the dense form of any mask; no [Q, T] array beyond those given, if it is large.

    Results have the shapes [B, H, Q, C], in the query's dtype, and [B, H, Q], float32: the natural logarithm of the
    sum that the softmax divides by. A query that may see no key gets zeros and -inf. Gradients (of the mask's floating
    arrays too) compute each block again, so they are bounded as well.
    """
    batch, heads, queries, _ = query_BHQD.shape
    keys = key_BKTD.shape[2]
    size = block_size(queries, batch * heads * keys)
    if size == queries:
        dense = mask.to_dense(queries, keys)
        return attention_with_lse(query_BHQD, key_BKTD, value_BKTC, dense, scale=scale, softcap=softcap)
    # The loop's gradient sums the blocks' in the dtype of what the loop is given. XLA removes the two casts.
    wide = jnp.promote_types(query_BHQD.dtype, jnp.float32)
    key, value = key_BKTD.astype(wide), value_BKTC.astype(wide)

    @jax.checkpoint
    def block(first: jax.Array) -> tuple[jax.Array, jax.Array]:
        query = jax.lax.dynamic_slice_in_dim(query_BHQD, first, size, axis=2)
        dense = rows(mask, first, size).to_dense(size, keys)
        narrow = key.astype(key_BKTD.dtype), value.astype(value_BKTC.dtype)
        return attention_with_lse(query, *narrow, dense, scale=scale, softcap=softcap)

    out_NBHQC, lse_NBHQ = jax.lax.map(block, starts(queries, size))
    return join(out_NBHQC, queries), join(lse_NBHQ, queries)


def block_size(queries: int, scores: int) -> int:
    """Queries of one block, where one query has that many scores: all blocks alike, as few as the limit allows."""
    blocks = -(-queries * scores * 4 // SCORES_LIMIT)
    return -(-queries // max(1, min(blocks, queries)))


def starts(queries: int, size: int) -> jax.Array:
    """First query of each block, int32. The last block ends with the last query, and may overlap the one before."""
    return jnp.minimum(jnp.arange(0, queries, size, dtype=jnp.int32), queries - size)


def join(blocks_NBHQx: jax.Array, queries: int) -> jax.Array:
    """Traced. Blocks [N, B, H, size, ...] as one [B, H, Q, ...]; of what two blocks have, the last one's counts."""
    count, batch, heads, size, *rest = blocks_NBHQx.shape
    whole = jnp.moveaxis(blocks_NBHQx[:-1], 0, 2).reshape(batch, heads, (count - 1) * size, *rest)
    return jnp.concatenate([whole[:, :, : queries - size], blocks_NBHQx[-1]], axis=2)


def rows(mask: Mask, first: jax.Array, size: int) -> Mask:
    """Traced. The mask of `size` queries from number `first` on, over all keys."""

    def cut(array: jax.Array | None, axis: int) -> jax.Array | None:
        return None if array is None else jax.lax.dynamic_slice_in_dim(array, first, size, axis)

    return dataclasses.replace(
        mask,
        offset=mask.offset + first,
        queries_BQ=cut(mask.queries_BQ, 1),
        query_segments_BQ=cut(mask.query_segments_BQ, 1),
        dense=cut(mask.dense, 2),
    )
