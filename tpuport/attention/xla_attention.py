"""Attention in plain XLA in bounded memory: the definition, block by block if the
scores would be large.

A TPU or GPU takes blocks of queries with all heads. A CPU takes one head and one block
of queries after the other, each within its cache.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension, C of values, N blocks of queries.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention.mask import Mask
from tpuport.attention.reference import attention_with_lse

# Bytes of float32 scores that one block may have; three arrays of this size live at
# once, seven while gradients are computed. Below it nothing is divided, so that XLA
# sees, and can shard, plain matmuls. A TPU wants many queries each time it reads all
# keys: at this limit Llama 3 8B's 32 heads over 8,192 keys have 128 of them, one tile
# of its matrix unit.
SCORES_LIMIT: Final = 128 * 2**20
# Bytes of float32 scores of all heads from which on a CPU gains by dividing. Fewer fit
# into its cache anyway.
CPU_DIVIDES_FROM: Final = 8 * 2**20
# Bytes of float32 scores of a CPU's block. On two cores of an EPYC, 6 heads over 3,400
# keys take 121 ms with 12 MB (123 with 5 MB, 148 with 3 MB, 155 with 46 MB), 341
# undivided; torch's own takes 135.
CPU_BLOCK: Final = 8 * 2**20


def attention_xla(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. `attention_with_lse` on the dense form of any mask, without a new [Q, T]
    array if that is large.

    Results have the shapes [B, H, Q, C], in the query's dtype, and [B, H, Q], float32:
    the natural logarithm of the sum that the softmax divides by. A query that may see
    no key gets zeros and -inf. Gradients (of the mask's floating arrays too) compute
    each block again, so they are bounded as well.
    """
    batch, heads, queries, _ = query_BHQD.shape
    keys = key_BKTD.shape[2]
    attend = functools.partial(attention_with_lse, scale=scale, softcap=softcap)
    if batch * heads * queries * keys * 4 < CPU_DIVIDES_FROM:
        return _by_query_blocks(attend, query_BHQD, key_BKTD, value_BKTC, mask)
    # `platform_dependent` takes arrays only, so the rest of the mask is closed over.
    arrays = {
        name: value
        for name, value in vars(mask).items()
        if isinstance(value, jax.Array)
    }

    def on_cpu(query: Any, key: Any, value: Any, arrays: dict[str, Any]) -> Any:
        return _by_head(attend, query, key, value, Mask(**(vars(mask) | arrays)))

    def elsewhere(query: Any, key: Any, value: Any, arrays: dict[str, Any]) -> Any:
        return _by_query_blocks(
            attend, query, key, value, Mask(**(vars(mask) | arrays))
        )

    return jax.lax.platform_dependent(
        query_BHQD, key_BKTD, value_BKTC, arrays, cpu=on_cpu, default=elsewhere
    )


def _by_query_blocks(
    attend: Any,
    query_BHQD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTC: jax.Array,
    mask: Mask,
) -> Any:
    batch, heads, queries, _ = query_BHQD.shape
    keys = key_BKTD.shape[2]
    size = block_size(queries, batch * heads * keys)
    if size == queries:
        return attend(query_BHQD, key_BKTD, value_BKTC, mask.to_dense(queries, keys))
    wide_key, wide_value = _widen(query_BHQD, key_BKTD, value_BKTC)

    @jax.checkpoint
    def block(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        first, query = part
        dense = mask.slice_queries(first, size).to_dense(size, keys)
        return attend(
            query,
            wide_key.astype(key_BKTD.dtype),
            wide_value.astype(value_BKTC.dtype),
            dense,
        )

    # Divided once: of a slice in the loop, a TPU copies all queries into the layout of
    # the products, in every round.
    parts = block_starts(queries, size), split_blocks(query_BHQD, size)
    out_NBHQC, lse_NBHQ = jax.lax.map(block, parts)
    return join_blocks(out_NBHQC, queries), join_blocks(lse_NBHQ, queries)


def _by_head(
    attend: Any,
    query_BHQD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTC: jax.Array,
    mask: Mask,
) -> Any:
    batch, heads, queries, dim = query_BHQD.shape
    kv_heads, keys, width = value_BKTC.shape[1:]
    size = block_size(queries, keys, CPU_BLOCK)
    starts = block_starts(queries, size)
    wide_key, wide_value = _widen(query_BHQD, key_BKTD, value_BKTC)

    @jax.checkpoint
    def block(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        pair, start = index // len(starts), starts[index % len(starts)]
        row, head = pair // heads, pair % heads
        group = head // (heads // kv_heads)
        query = jax.lax.dynamic_slice(
            query_BHQD, (row, head, start, 0), (1, 1, size, dim)
        )
        key = jax.lax.dynamic_slice(wide_key, (row, group, 0, 0), (1, 1, keys, dim))
        value = jax.lax.dynamic_slice(
            wide_value, (row, group, 0, 0), (1, 1, keys, width)
        )
        dense = (
            mask.select_head(row, head).slice_queries(start, size).to_dense(size, keys)
        )
        out, lse = attend(
            query, key.astype(key_BKTD.dtype), value.astype(value_BKTC.dtype), dense
        )
        return out[0, 0], lse[0, 0]

    blocks = jax.lax.map(
        block, jnp.arange(batch * heads * len(starts), dtype=jnp.int32)
    )

    def join(x: jax.Array) -> jax.Array:
        x = x.reshape(batch, heads, len(starts), size, *x.shape[2:])
        return join_blocks(jnp.moveaxis(x, 2, 0), queries)

    out, lse = blocks
    return join(out), join(lse)


def _widen(
    query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Keys and values in the dtype in which the gradients of the blocks are to be
    summed.

    A loop sums the gradients of what it closes over in the dtype of that array, and
    half precision would lose digits at each block. The blocks cast back at once, and
    XLA removes both casts.
    """
    wide = jnp.promote_types(query.dtype, jnp.float32)
    return key.astype(wide), value.astype(wide)


def block_size(queries: int, scores_per_query: int, limit: int | None = None) -> int:
    """Queries of one block: blocks of equal size, as few as `limit` bytes (None:
    `SCORES_LIMIT`) of scores allow.
    """
    limit = SCORES_LIMIT if limit is None else limit
    blocks = -(-queries * scores_per_query * 4 // limit)
    return -(-queries // max(1, min(blocks, queries)))


def block_starts(queries: int, size: int) -> jax.Array:
    """First query of each block, int32. The last block ends with the last query, and
    may overlap the one before.
    """
    return jnp.minimum(jnp.arange(0, queries, size, dtype=jnp.int32), queries - size)


def split_blocks(array_BHQx: jax.Array, size: int) -> jax.Array:
    """Traced. [B, H, Q, ...] as blocks [N, B, H, size, ...] from `block_starts`."""
    batch, heads, queries, *rest = array_BHQx.shape
    count = -(-queries // size)
    whole = array_BHQx[:, :, : (count - 1) * size].reshape(
        batch, heads, count - 1, size, *rest
    )
    return jnp.concatenate(
        [jnp.moveaxis(whole, 2, 0), array_BHQx[None, :, :, queries - size :]]
    )


def join_blocks(blocks_NBHQx: jax.Array, queries: int) -> jax.Array:
    """Traced. Blocks [N, B, H, size, ...] as one [B, H, Q, ...]; queries of two blocks
    come from the last one.
    """
    count, batch, heads, size, *rest = blocks_NBHQx.shape
    whole = jnp.moveaxis(blocks_NBHQx[:-1], 0, 2).reshape(
        batch, heads, (count - 1) * size, *rest
    )
    return jnp.concatenate([whole[:, :, : queries - size], blocks_NBHQx[-1]], axis=2)
