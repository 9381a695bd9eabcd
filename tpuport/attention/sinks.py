"""Attention sinks: a logit of each head that takes its share of the softmax and has no value, as in GPT-OSS.

Shapes: B batch, H query heads, Q query length, C head dimension of values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def apply_sinks(
    out_BHQC: Float[Array, "B H Q C"], lse_BHQ: Float[Array, "B H Q"], sinks_H: Float[Array, " H"]
) -> Float[Array, "B H Q C"]:
    """Traced. What attention with sinks gives, from the output and log-sum-exp of attention without.

    A sink s turns the softmax's sum exp(lse) into exp(lse) + exp(s), so every weight, and with them the output, is
    multiplied by exp(lse) / (exp(lse) + exp(s)) = sigmoid(lse - s). A row that sees no key (lse -inf) stays zero, and
    a sink of -inf changes nothing.
    """
    seen = lse_BHQ > -jnp.inf
    # Chosen twice, before the subtraction and after, so that -inf - -inf arises neither here nor in the gradient.
    above = jnp.where(seen, lse_BHQ, 0.0) - sinks_H.astype(jnp.float32)[None, :, None]
    kept = jnp.where(seen, jax.nn.sigmoid(above), 0.0)
    return (out_BHQC * kept[..., None]).astype(out_BHQC.dtype)
