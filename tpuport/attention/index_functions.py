"""Attention under a mask and a change of scores that are functions of one pair's
indices, as in FlexAttention.

Such a function is traced once, on scalars, and mapped over as many indices as are
needed: over all of them to see whether the mask has structure, or over those of one
block of queries, so that no [Q, T] array has to fit in memory.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values, N blocks of queries.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval

from tpuport.attention.reference import softmax_with_lse
from tpuport.attention.xla_attention import block_size, block_starts, join_blocks


class IndexFunction:
    """Traced. A function of the indices (batch, head, query, key), scalars of int32,
    and of a score before them.

    Attributes:
        dtype: of its result, a scalar.
        is_identity: whether it returns the score as it is.

    Raises:
        TypeError: the result is not a scalar.
    """

    def __init__(
        self, function: Callable[..., jax.Array], score_dtype: Any = None
    ) -> None:
        """Args: `score_dtype` is that of the score, its first argument; None if it has
        none.
        """
        dtypes = [jnp.int32] * 4
        if score_dtype is not None:
            dtypes = [score_dtype, *dtypes]
        scalars = [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes]
        closed, form = jax.make_jaxpr(function, return_shape=True)(*scalars)
        if form.shape != ():
            raise TypeError(f"it returned a tensor of shape {list(form.shape)}")
        jaxpr: Any = closed.jaxpr
        self.dtype = form.dtype
        self.is_identity = jaxpr.outvars[0] is jaxpr.invars[0]
        _, used = partial_eval.dce_jaxpr(jaxpr, used_outputs=[True], instantiate=False)
        # What has a score for each pair has a result for each.
        self._is_mapped = used if score_dtype is None else [True] * 4
        self._function = core.jaxpr_as_fun(closed)

    def at(self, indices: list[jax.Array], *score_BHQT: jax.Array) -> jax.Array:
        """Traced. The results [B, H, Q, T] for vectors of indices, and the scores if
        there are any.

        Without scores, an axis on which nothing depends has the size 1.
        """
        mapped: Any = self._call
        # The innermost first, as torch maps them.
        for axis in (3, 2, 1, 0):
            if self._is_mapped[axis]:
                mapped = jax.vmap(mapped, (0,) * len(score_BHQT) + _only(axis))
        pairs = list(zip(indices, self._is_mapped, strict=True))
        arguments = [
            vector if is_mapped else jnp.int32(0) for vector, is_mapped in pairs
        ]
        shape = [len(vector) if is_mapped else 1 for vector, is_mapped in pairs]
        # A constant function gives a Python value.
        return jnp.asarray(mapped(*score_BHQT, *arguments)).reshape(shape)

    def _call(self, *arguments: jax.Array) -> jax.Array:
        return self._function(*arguments)[0]


def count_indices(*sizes: int) -> list[jax.Array]:
    """Traced. All indices below each of the sizes."""
    return [jnp.arange(size, dtype=jnp.int32) for size in sizes]


def _only(axis: int) -> tuple[int | None, ...]:
    """The axes over which `jax.vmap` maps one of the four indices."""
    return tuple(0 if other == axis else None for other in range(4))


class Statistics(NamedTuple):
    """Of each query, [B, H, Q]: the logarithm of the softmax's sum, and the largest
    score; -inf without keys.
    """

    lse: jax.Array
    maximum: jax.Array


def attention_of_functions(
    query_BHQD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTC: jax.Array,
    mask: IndexFunction,
    score: IndexFunction,
    scale: float,
) -> tuple[jax.Array, Statistics]:
    """Traced. softmax(score(scale * q.k) where the mask allows) . v, [B, H, Q, C] in
    the query's dtype.

    Scores are float32 (float64 for such a query), and blocks of queries as large as
    those of `attention_xla`. Keys and values may have another dtype than the query:
    keys are multiplied as they are, values in the query's dtype.
    """
    batch, heads, queries, dim = query_BHQD.shape
    kv_heads, keys, width = value_BKTC.shape[1:]
    wide = jnp.promote_types(query_BHQD.dtype, jnp.float32)
    common = jnp.promote_types(query_BHQD.dtype, key_BKTD.dtype)
    size = block_size(queries, batch * heads * keys)
    value = value_BKTC.astype(query_BHQD.dtype)

    @jax.checkpoint
    def block(first: Any) -> tuple[jax.Array, Statistics]:
        query = jax.lax.dynamic_slice_in_dim(query_BHQD, first, size, axis=2)
        query = query.astype(common).reshape(
            batch, kv_heads, heads // kv_heads, size, dim
        )
        key = key_BKTD.astype(common)
        scores = (
            jnp.einsum("bkgqd,bktd->bkgqt", query, key, preferred_element_type=wide)
            * scale
        )
        indices = count_indices(batch, heads, size, keys)
        indices[2] += first
        changed = score.at(indices, scores.reshape(batch, heads, size, keys))
        if not jnp.issubdtype(changed.dtype, jnp.floating):
            changed = changed.astype(wide)
        changed = jnp.where(mask.at(indices), changed, -jnp.inf)
        # A function that rounds to half precision rounds the statistics and weights,
        # too.
        weights, lse = softmax_with_lse(changed.astype(wide))
        weights = weights.astype(changed.dtype).astype(value.dtype)
        weights = weights.reshape(batch, kv_heads, heads // kv_heads, size, keys)
        out = jnp.einsum(
            "bkgqt,bktc->bkgqc", weights, value, preferred_element_type=wide
        )
        out = out.astype(query_BHQD.dtype).reshape(batch, heads, size, width)
        return out, Statistics(
            lse.astype(changed.dtype), jnp.max(changed, axis=-1, initial=-jnp.inf)
        )

    if size == queries:
        return block(jnp.int32(0))
    out_NBHQC, statistics = jax.lax.map(block, block_starts(queries, size))
    return join_blocks(out_NBHQC, queries), Statistics(
        *(join_blocks(x, queries) for x in statistics)
    )
