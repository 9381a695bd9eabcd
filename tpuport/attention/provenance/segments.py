"""Packed sequences: a number for each query compared with a number for each key."""

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.provenance.conditions import Condition
from tpuport.attention.provenance.emission import emit
from tpuport.attention.provenance.graph import Node
from tpuport.attention.provenance.variation import varies

_BATCH, _HEADS, _QUERIES, _KEYS = range(4)


def segments(condition: Condition) -> tuple[jax.Array, jax.Array] | None:
    """Traced. (query segments [B or 1, Q], key segments [B or 1, T]), int32 from 0, of a comparison for equality."""
    node = condition.node
    equal = (node.name == "eq" and True in condition.wanted) or (
        node.name == "ne" and False in condition.wanted
    )
    if not equal or len(condition.wanted) != 1 or any(len(o.shape) != 4 for o in node.operands):
        return None
    left, right = node.operands
    if not (np.issubdtype(left.dtype, np.integer) or left.dtype == np.bool_):
        return None
    for query, key in ((left, right), (right, left)):
        if _varies_over(query, _QUERIES) and _varies_over(key, _KEYS):
            return _from_zero(_vector(query, _QUERIES), _vector(key, _KEYS))
    return None


def _varies_over(node: Node, axis: int) -> bool:
    return not any(may for at, may in enumerate(varies(node)) if at not in (_BATCH, axis))


def _vector(node: Node, axis: int) -> jax.Array:
    single = [True] * 4
    single[_BATCH], single[axis] = not varies(node)[_BATCH], False
    array = emit(node, tuple(single))
    return array.reshape(array.shape[0], node.shape[axis])


def _from_zero(query_BQ: jax.Array, key_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same equalities between numbers from 0; a mask of the kernel's own uses the negative ones."""
    if query_BQ.dtype.itemsize < 4:
        query_BQ, key_BT = query_BQ.astype(jnp.int32), key_BT.astype(jnp.int32)
        least = jnp.minimum(query_BQ.min(), key_BT.min())
        return query_BQ - least, key_BT - least
    least = jnp.minimum(query_BQ.min(), key_BT.min())
    apart = jnp.maximum((query_BQ - least).max(), (key_BT - least).max())
    near = (query_BQ - least).min() >= 0
    near &= ((key_BT - least).min() >= 0) & (apart <= jnp.iinfo(jnp.int32).max)
    return jax.lax.cond(near, _shifted, _ranked, query_BQ, key_BT, least)


def _shifted(query_BQ: jax.Array, key_BT: jax.Array, least: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (query_BQ - least).astype(jnp.int32), (key_BT - least).astype(jnp.int32)


def _ranked(query_BQ: jax.Array, key_BT: jax.Array, least: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Places in the sorted list of all numbers, for numbers further apart than int32 reaches."""
    every = jnp.sort(jnp.concatenate([query_BQ.ravel(), key_BT.ravel()]))
    query, key = (jnp.searchsorted(every, x, method="sort").astype(jnp.int32) for x in (query_BQ, key_BT))
    return query, key
