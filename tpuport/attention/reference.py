"""Scaled dot-product attention in plain XLA: the definition that every faster form is
tested against.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T
key/value length, D head dimension of queries and keys, C of values.
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
    """Traced. softmax(softcap(scale * q.k) + mask) . v, with grouped key/value heads
    that are never repeated in memory.

    Args:
        mask: True where a query may see a key, or a number that is added to the score.
            None masks nothing.
        scale: factor on the dot products, usually D ** -0.5.
        softcap: scores become softcap * tanh(score / softcap), as in Gemma 2.
        sinks_H: one extra logit a head that takes its share of the softmax and has no
            value, as in GPT-OSS.

    A query that may see no key gets zeros, never NaN. Scores and softmax are float32,
    or float64 if the inputs are.
    """
    return attention_with_lse(
        query_BHQD,
        key_BKTD,
        value_BKTC,
        mask,
        scale=scale,
        softcap=softcap,
        sinks_H=sinks_H,
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
    dropout_p: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> tuple[Float[Array, "B H Q C"], Float[Array, "B H Q"]]:
    """Traced. `attention`, and the natural logarithm of the sum that it divides by
    (-inf: no key seen).

    With `dropout_p`, that share of the softmax's weights is dropped at random, by the
    key, and the others grow to make up for it.
    """
    batch, heads, queries, dim = query_BHQD.shape
    kv_heads, _, width = value_BKTC.shape[1:]
    groups = heads // kv_heads
    wide = jnp.promote_types(query_BHQD.dtype, jnp.float32)
    query = query_BHQD.reshape(batch, kv_heads, groups, queries, dim)
    # What `jnp.einsum` writes for "bkgqd,bktd->bkgqt", which takes longer to trace.
    of_heads = ((0, 1), (0, 1))
    scores = scale * jax.lax.dot_general(
        query, key_BKTD, (((4,), (3,)), of_heads), preferred_element_type=wide
    )
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if mask is not None:
        scores = mask_scores(scores, mask)
    # A sink of -inf takes no share, so no sinks are sinks of -inf.
    sinks: jax.Array | float = -jnp.inf
    if sinks_H is not None:
        sinks = sinks_H.astype(wide).reshape(1, kv_heads, groups, 1, 1)
    weights, lse = softmax_with_lse(scores, sinks)
    if dropout_p:
        weights = _drop_out(weights, dropout_p, dropout_key)
    # "bkgqt,bktc->bkgqc"
    out = jax.lax.dot_general(
        weights.astype(value_BKTC.dtype),
        value_BKTC,
        (((4,), (2,)), of_heads),
        preferred_element_type=wide,
    )
    out = out.astype(query_BHQD.dtype).reshape(batch, heads, queries, width)
    return out, lse.reshape(batch, heads, queries)


def _drop_out(weights: jax.Array, share: float, key: jax.Array | None) -> jax.Array:
    """Weights of which a share is 0 and the others are divided by what is left; with a
    share of 1, all are 0.
    """
    if share >= 1:
        return jnp.zeros_like(weights)
    assert key is not None
    # Of float32 at least: bernoulli's default would follow the weights' dtype.
    is_kept = jax.random.bernoulli(key, 1.0 - share, weights.shape)
    return jnp.where(is_kept, weights / (1.0 - share), 0.0)


def mask_scores(scores_BKGQT: jax.Array, mask: jax.Array) -> jax.Array:
    """Traced. The scores with a mask [B or 1, 1 or H, Q, T] added, and -inf where a
    boolean one hides a key.

    A key with the lowest finite number is not seen beside others, which have all of the
    softmax. Where all keys have it, the scores are lost in it, and each has the same
    share, as in torch.
    """
    batch, heads, *lengths = mask.shape
    groups = (1, 1) if heads == 1 else scores_BKGQT.shape[1:3]
    mask = mask.reshape(batch, *groups, *lengths)
    if mask.dtype == jnp.bool_:
        return jnp.where(mask, scores_BKGQT, -jnp.inf)
    return scores_BKGQT + mask


def softmax_with_lse(
    scores: jax.Array, sinks: jax.Array | float = -jnp.inf
) -> tuple[jax.Array, jax.Array]:
    """Traced. Softmax over the last axis, and the log of its sum; a row of -inf gives
    zeros and -inf.
    """
    # The initial -inf is the maximum over no keys at all.
    top = jnp.max(
        jax.lax.stop_gradient(scores), axis=-1, keepdims=True, initial=-jnp.inf
    )
    top = jnp.maximum(top, sinks)
    # A row that sees nothing has no finite maximum, and -inf minus -inf would be NaN.
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True) + jnp.exp(sinks - top)
    is_empty = total == 0.0
    total = jnp.where(is_empty, 1.0, total)
    return weights / total, jnp.where(is_empty, -jnp.inf, jnp.log(total) + top)[..., 0]


def apply_sinks(
    out_BHQC: Float[Array, "B H Q C"],
    lse_BHQ: Float[Array, "B H Q"],
    sinks: Float[Array, " H"] | Float[Array, "B H Q"] | None,
) -> Float[Array, "B H Q C"]:
    """Traced. Attention with sinks, if there are any, from the output and log-sum-exp
    of attention without.

    A sink s turns the softmax's sum exp(lse) into exp(lse) + exp(s), so every weight,
    and with them the output, is multiplied by exp(lse) / (exp(lse) + exp(s)) =
    sigmoid(lse - s). A row that sees no key (lse -inf) stays zero, and a sink of -inf
    changes nothing.
    """
    if sinks is None:
        return out_BHQC
    sees_a_key = lse_BHQ > -jnp.inf
    # Selected twice, before the subtraction and after, so that -inf - -inf arises
    # neither forwards nor backwards.
    sinks = sinks.astype(jnp.float32)
    if sinks.ndim == 1:
        sinks = sinks[None, :, None]
    difference = jnp.where(sees_a_key, lse_BHQ, 0.0) - sinks
    factor = jnp.where(sees_a_key, jax.nn.sigmoid(difference), 0.0)
    return (out_BHQC * factor[..., None]).astype(out_BHQC.dtype)
