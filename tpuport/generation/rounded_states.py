"""Keys and values in int8, with a scale for each position and head.

Shapes: B batch, K key/value heads, Q columns, D head dimension.
"""

import jax
import jax.numpy as jnp

from tpuport.compat.few_bits import round_rows


def quantize_states(states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Traced. [B, K, Q, D] as int8, and scales [B, K, Q] of the states' dtype: largest
    magnitude / 127.

    What is not finite makes its whole position not finite, as the product with a query
    would be.
    """
    values, scales = round_rows(states, states.dtype)
    return values, scales[..., 0]


def dequantize_states(
    values: jax.Array, scales: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """Traced. [B, K, T, D] in a floating dtype, of int8 values and their scales
    [B, K, T].
    """
    # Integers up to 127 are exact in every dtype, so that a product is rounded once. In
    # float32, the TPU compiler would write all scales to memory in that dtype.
    return values.astype(dtype) * scales[..., None].astype(dtype)
