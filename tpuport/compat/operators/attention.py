"""`F.scaled_dot_product_attention` with torch's meaning, for code that calls it
directly.

Shapes: H query heads, K key/value heads, G = H / K, L query length, S key length, D and
C head dimensions; `...` stands for any leading dimensions, heads last among them.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.randomness import next_key
from tpuport.errors import PortError


def scaled_dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: jax.Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> jax.Array:
    """Traced. Attention over [..., L, D], [..., S, D] and [..., S, C]; scores and
    softmax in float32 at least.

    Args:
        query: [..., H, L, D].
        key: [..., K, S, D]; K is H, or 1, or with `enable_gqa` divides H.
        value: [..., K, S, C].
        attn_mask: broadcasts to [..., H, L, S]; True where a query attends to a key, or
            numbers to add to the scores.
        dropout_p: share of the weights to drop.
        is_causal: query i sees keys 0 to i; excludes a mask.
        scale: factor on the dot products; D ** -0.5 if None.
        enable_gqa: repeat each key/value head for the query heads of its group.

    Returns:
        [..., H, L, C] in the query's dtype. A query that attends to no key gets zeros.

    Raises:
        PortError: there are both a mask and `is_causal`, or the head counts do not
            divide.
    """
    refuse_mask_beside_causal(attn_mask, is_causal)
    if enable_gqa and query.ndim > 2:
        key, value = (_repeat_heads(heads, query.shape[-3]) for heads in (key, value))
    wide = jnp.promote_types(query.dtype, jnp.float32)
    # A product in half precision would round every score before the softmax.
    scores = jnp.einsum("...ld,...sd->...ls", query, key, preferred_element_type=wide)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1] or 1)
    scores = scores * scale
    if is_causal:
        # torch aligns the first query with the first key.
        attn_mask = jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_))
    if attn_mask is not None:
        if attn_mask.dtype == jnp.bool_:
            # Not the lowest number: a row without visible keys has to give zeros.
            scores = jnp.where(attn_mask, scores, -jnp.inf)
        else:
            scores = scores + attn_mask.astype(wide)
    weights = _drop_out(_softmax(scores), dropout_p)
    out = jnp.einsum(
        "...ls,...sc->...lc",
        weights.astype(value.dtype),
        value,
        preferred_element_type=wide,
    )
    return out.astype(query.dtype)


def refuse_mask_beside_causal(attn_mask: Any, is_causal: bool) -> None:
    """PortError for a call that gives both."""
    if attn_mask is not None and is_causal:
        raise PortError(
            "attention takes a mask or is_causal, not both", fix="pass one of the two"
        )


def _repeat_heads(heads: jax.Array, count: int) -> jax.Array:
    """[..., K, S, D] -> [..., count, S, D], each head G times in a row."""
    if count % heads.shape[-3]:
        raise PortError(
            f"{count} query heads cannot share {heads.shape[-3]} key/value heads",
            where=f"attention over {heads.shape}",
        )
    return jnp.repeat(heads, count // heads.shape[-3], axis=-3)


def _softmax(scores: jax.Array) -> jax.Array:
    """Over the last axis; a row of -inf gives zeros instead of NaN."""
    top = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total == 0.0, 1.0, total)


def _drop_out(weights: jax.Array, share: float) -> jax.Array:
    if not 0 <= share <= 1:
        raise RuntimeError(
            f"dropout probability has to be between 0 and 1, but got {share}"
        )
    if share == 0:
        return weights
    if share == 1:
        return jnp.zeros_like(weights)
    is_kept = jax.random.bernoulli(next_key(), 1.0 - share, weights.shape)
    return jnp.where(is_kept, weights / (1.0 - share), 0.0)


_REASON = "torchax adds the mask in place into a smaller tensor, which only its lenient copy_ forgives"

LOWERINGS = (
    Lowering(
        torch.nn.functional.scaled_dot_product_attention,
        on_arrays(scaled_dot_product_attention),
        _REASON,
    ),
    Lowering(
        torch.ops.aten.scaled_dot_product_attention,
        on_arrays(scaled_dot_product_attention),
        _REASON,
    ),
)
METHODS = ()
