"""Queries cut into blocks, which are alike and may overlap, and put together again."""

import dataclasses

import jax
import jax.numpy as jnp

from tpuport.attention.mask import Mask


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
