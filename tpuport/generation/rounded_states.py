"""Keys and values in int8, with a scale for each position and head.

Shapes: B batch, K key/value heads, Q columns, D head dimension.
"""

from typing import Final

import jax
import jax.numpy as jnp

# Symmetric, so that zero is exact.
_LARGEST: Final = 127


def quantize_states(states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Traced. [B, K, Q, D] as int8, and scales [B, K, Q] of the states' dtype: largest magnitude / 127.

    What is not finite makes its whole position not finite, as the product with a query would be.
    """
    wide = states.astype(jnp.float32)
    scales = (jnp.max(jnp.abs(wide), axis=-1) / _LARGEST).astype(states.dtype)
    # By the scale as it is stored: then its own rounding costs nothing.
    divisors = scales.astype(jnp.float32)[..., None]
    quotients = jnp.where(divisors == 0, 0, wide / divisors)
    return jnp.clip(jnp.round(quotients), -_LARGEST, _LARGEST).astype(jnp.int8), scales


def dequantize_states(values: jax.Array, scales: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Traced. [B, K, T, D] in a floating dtype, of int8 values and their scales [B, K, T]."""
    return (values.astype(jnp.float32) * scales.astype(jnp.float32)[..., None]).astype(dtype)
