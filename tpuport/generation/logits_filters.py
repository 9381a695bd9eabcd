"""Filters of logits, which hide the tokens that are least likely.

Each is Traced: (step, scores [B, V], its option) -> scores. The step's processors say
how many tokens a filter leaves at least.
"""

from typing import Any

import jax
import jax.numpy as jnp

# Of transformers' TopHLogitsWarper: more tokens are not looked at.
_TOP_H_TOKENS = 100


def mark_tokens(
    tokens: jax.Array, marked: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
    """Traced. [B, V], True for the tokens [B, S] of each row that are marked there."""
    rows = jnp.arange(shape[0])[:, None]
    return jnp.zeros(shape, jnp.bool_).at[rows, tokens].max(marked, mode="drop")


def filter_top_h(step: Any, scores: jax.Array, share: jax.Array) -> jax.Array:
    """Traced. The most probable tokens with a share of the entropy (Potraghloo
    et al. 2025).
    """
    top, ids = jax.lax.top_k(scores, min(_TOP_H_TOKENS, scores.shape[-1]))
    log_probabilities = jax.nn.log_softmax(top, axis=-1)
    probabilities = jnp.exp(log_probabilities)
    possible = probabilities > 0.0
    terms = jnp.where(possible, -probabilities * log_probabilities, 0.0)
    entropy = jnp.cumsum(terms, axis=-1)
    # The last of the sums, so that a share of 1 keeps all however they round.
    keep = (entropy <= share * entropy[:, -1:]) & possible
    keep = keep.at[:, 0].set(True)
    return jnp.where(mark_tokens(ids, keep, scores.shape), scores, -jnp.inf)


def filter_typical(step: Any, scores: jax.Array, share: jax.Array) -> jax.Array:
    """Traced. The tokens whose information is nearest to the entropy (Meister et al.
    2022).
    """
    log_probabilities = jax.nn.log_softmax(scores, axis=-1)
    probabilities = jnp.exp(log_probabilities)
    entropy = -jnp.nansum(log_probabilities * probabilities, axis=-1, keepdims=True)
    distance = jnp.abs(-log_probabilities - entropy)
    order = jnp.argsort(distance, axis=-1)
    ascending = jnp.take_along_axis(distance, order, axis=-1)
    mass = jnp.cumsum(
        jax.nn.softmax(jnp.take_along_axis(scores, order, axis=-1), axis=-1), axis=-1
    )
    last = jnp.sum(mass < share, axis=-1, keepdims=True)
    limit = jnp.take_along_axis(
        ascending, jnp.minimum(last, scores.shape[-1] - 1), axis=-1
    )
    remove = (ascending > limit) & (jnp.arange(scores.shape[-1]) >= least_tokens(step))
    # The inverse permutation brings each decision back to its token.
    remove = jnp.take_along_axis(remove, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(remove, -jnp.inf, scores)


def filter_epsilon(step: Any, scores: jax.Array, cutoff: jax.Array) -> jax.Array:
    """Traced. The tokens of at least this probability (Hewitt et al. 2022)."""
    return _cut_off(step, scores, cutoff)


def filter_eta(step: Any, scores: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Traced. As `filter_epsilon`, lower where the entropy is high (Hewitt et al.
    2022).
    """
    log_probabilities = jax.nn.log_softmax(scores, axis=-1)
    probabilities = jnp.exp(log_probabilities)
    terms = jnp.where(probabilities > 0.0, probabilities * log_probabilities, 0.0)
    entropy = -jnp.sum(terms, axis=-1, keepdims=True)
    cutoff = jnp.minimum(epsilon, jnp.sqrt(epsilon) * jnp.exp(-entropy))
    return _cut_off(step, scores, cutoff)


def _cut_off(step: Any, scores: jax.Array, cutoff: jax.Array) -> jax.Array:
    remove = jax.nn.softmax(scores, axis=-1) < cutoff
    return jnp.where(remove & (scores < least_kept(step, scores)), -jnp.inf, scores)


def least_kept(step: Any, scores: jax.Array) -> jax.Array:
    """Traced. [B, 1], the least of the scores [B, V] that each filter leaves."""
    if step is None or step.processors.min_tokens is None:
        return jnp.max(scores, axis=-1, keepdims=True)
    ascending = jnp.sort(scores, axis=-1)
    last = jnp.maximum(scores.shape[-1] - least_tokens(step), 0)
    return jnp.take(ascending, last, axis=-1)[:, None]


def least_tokens(step: Any) -> Any:
    """Traced. How many tokens each filter leaves."""
    if step is None or step.processors.min_tokens is None:
        return 1
    return step.processors.min_tokens
