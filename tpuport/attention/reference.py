"""Scaled dot-product attention in plain XLA: the definition that every faster form is tested against.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T key/value length,
D head dimension of queries and keys, C of values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def attention(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Bool[Array, "#B #H #Q T"] | Float[Array, "#B #H #Q T"] | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: Float[Array, " H"] | None = None,
) -> Float[Array, "B H Q C"]:
    """Traced. softmax(softcap(scale * q.k) + mask) . v, with grouped key/value heads that are never repeated in memory.

    Args:
        mask: True where a query may see a key, or a number that is added to the score. None masks nothing.
        scale: factor on the dot products, usually D ** -0.5.
        softcap: scores become softcap * tanh(score / softcap), as in Gemma 2.
        sinks_H: one extra logit a head that takes its share of the softmax and has no value, as in GPT-OSS.

    A query that may see no key gets zeros, never NaN. Scores and softmax are float32, or float64 where the inputs are.
    """
    return attention_with_lse(
        query_BHQD, key_BKTD, value_BKTC, mask, scale=scale, softcap=softcap, sinks_H=sinks_H
    )[0]


def attention_with_lse(
    query_BHQD: Float[Array, "B H Q D"],
    key_BKTD: Float[Array, "B K T D"],
    value_BKTC: Float[Array, "B K T C"],
    mask: Bool[Array, "#B #H #Q T"] | Float[Array, "#B #H #Q T"] | None = None,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: Float[Array, " H"] | None = None,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. `attention`, and the natural logarithm of the sum that it divides by (-inf: no key seen)."""
    batch, heads, queries, dim = query_BHQD.shape
    kv_heads, _, width = value_BKTC.shape[1:]
    groups = heads // kv_heads
    wide = jnp.promote_types(query_BHQD.dtype, jnp.float32)
    query = query_BHQD.reshape(batch, kv_heads, groups, queries, dim)
    scores = jnp.einsum("bkgqd,bktd->bkgqt", query, key_BKTD, preferred_element_type=wide) * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if mask is not None:
        mask = _grouped(mask, kv_heads, groups)
        visible = mask if mask.dtype == jnp.bool_ else ~(mask <= jnp.finfo(mask.dtype).min)
        scores = jnp.where(visible, scores if mask.dtype == jnp.bool_ else scores + mask, -jnp.inf)
    weights, lse = _softmax(scores, None if sinks_H is None else sinks_H.reshape(kv_heads, groups))
    out = jnp.einsum(
        "bkgqt,bktc->bkgqc", weights.astype(value_BKTC.dtype), value_BKTC, preferred_element_type=wide
    )
    out = out.astype(query_BHQD.dtype).reshape(batch, heads, queries, width)
    return out, lse.reshape(batch, heads, queries)


def _grouped(mask: jax.Array, kv_heads: int, groups: int) -> jax.Array:
    """[B, 1|H, Q, T] -> [B, 1|K, 1|G, Q, T]."""
    batch, heads, queries, keys = mask.shape
    return mask[:, :, None] if heads == 1 else mask.reshape(batch, kv_heads, groups, queries, keys)


def _softmax(scores: jax.Array, sinks_KG: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Softmax over the last axis of [B, K, G, Q, T], and the log of its sum; a row of -inf gives zeros and -inf."""
    # The initial -inf is the maximum over no keys at all.
    top = jnp.max(jax.lax.stop_gradient(scores), axis=-1, keepdims=True, initial=-jnp.inf)
    # A sink of -inf takes no share, so no sinks are sinks of -inf.
    sinks = -jnp.inf if sinks_KG is None else sinks_KG.astype(scores.dtype)[None, :, :, None, None]
    top = jnp.maximum(top, sinks)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True) + jnp.exp(sinks - top)
    empty = total == 0.0
    total = jnp.where(empty, 1.0, total)
    return weights / total, jnp.where(empty, -jnp.inf, jnp.log(total) + top)[..., 0]
