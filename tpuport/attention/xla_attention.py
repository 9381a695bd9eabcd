"""Attention in plain XLA in bounded memory: the definition, over blocks of queries where the scores would be large.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D head dimension, C of values.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tpuport.attention.blocking import join, rows, starts
from tpuport.attention.by_head import attention_by_head, worthwhile
from tpuport.attention.mask import Mask
from tpuport.attention.reference import attention_with_lse

# Bytes of float32 scores that one block may have; three arrays of this size live at once, seven where gradients are
# computed. Below it nothing is cut, so that XLA sees, and can shard, plain matmuls. A TPU wants
# many queries for each time that it reads all keys: here Llama 3 8B's 32 heads over 8,192 keys have 128 of them, one
# tile of its matrix unit. A CPU takes another way, `by_head`.
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
    forms = [
        functools.partial(form, scale=scale, softcap=softcap) for form in (attention_by_head, _in_blocks)
    ]
    if not worthwhile(batch, heads, queries, keys):
        return forms[1](query_BHQD, key_BKTD, value_BKTC, mask)
    # What is no array stays outside: `platform_dependent` takes arrays alone.
    fields = {field.name: getattr(mask, field.name) for field in dataclasses.fields(mask)}
    arrays = {name: value for name, value in fields.items() if isinstance(value, jax.Array)}

    def on(form: Callable) -> Callable:
        return lambda q, k, v, parts: form(q, k, v, dataclasses.replace(mask, **parts))

    return jax.lax.platform_dependent(
        query_BHQD, key_BKTD, value_BKTC, arrays, cpu=on(forms[0]), default=on(forms[1])
    )


def _in_blocks(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Mask,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
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
