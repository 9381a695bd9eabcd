"""Numbers in few bits: rounded, scaled by groups, and looked up.

Letters as in `compat.operators.quantized`; S parts of neighbouring groups, K inputs.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.errors import PortError

# Inputs that share a scale, in MXFP4.
MXFP4_GROUP: Final = 32
# Symmetric, so that zero is exact.
_LARGEST = 127


@jax.custom_vjp
def without_gradient(activations: jax.Array) -> jax.Array:
    """Traced. The same; a gradient of what it becomes is an error, and not the zero
    that rounding has.
    """
    return activations


def _refuse_gradient(residuals: None, cotangent: jax.Array) -> tuple[jax.Array]:
    raise PortError(
        "weights in 'w8a8' have no gradients: their products round activations",
        where="quantize='w8a8'",
        fix="train with quantize='int8', whose products are differentiable",
    )


without_gradient.defvjp(lambda activations: (activations, None), _refuse_gradient)


def round_rows(numbers: jax.Array, scale_dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Traced. [..., K] as int8, and a scale [..., 1] for each row, its largest
    magnitude / 127.

    A row with a number that is not finite gets a scale that is not, as its product
    would be.
    """
    wide = numbers.astype(jnp.float32)
    scale = (
        jnp.max(jnp.abs(wide), axis=-1, keepdims=True, initial=0) / _LARGEST
    ).astype(scale_dtype)
    # By the scale as it is stored: then its own rounding costs nothing.
    divisor = scale.astype(jnp.float32)
    quotients = jnp.where(divisor == 0, 0, wide / divisor)
    return jnp.clip(jnp.round(quotients), -_LARGEST, _LARGEST).astype(jnp.int8), scale


def multiply_by_groups(
    inner: jax.Array, outer: jax.Array | None, dtype: np.dtype
) -> jax.Array:
    """Traced. Numbers of groups [..., G, B] as `dtype`, times those of neighbouring
    groups [..., S, B].
    """
    numbers = inner.astype(dtype)
    if outer is None:
        return numbers
    return numbers * jnp.repeat(
        outer.astype(dtype), inner.shape[-2] // outer.shape[-2], axis=-2
    )


def look_up(indices: jax.Array, levels: tuple[float, ...], dtype: Any) -> jax.Array:
    """Traced. `levels[indices]`, by choices, which fuse into a product where a gather
    does not.

    Each bit of an index halves the levels that are left: as many choices as levels, and
    a test for each bit.
    """
    left: list[Any] = [jnp.asarray(level, dtype) for level in levels]
    left += [left[-1]] * (-len(left) % (1 << (len(left) - 1).bit_length()))
    bit = 1
    while len(left) > 1:
        is_set = (indices & jnp.asarray(bit, indices.dtype)) != 0
        left = [
            jnp.where(is_set, odd, even)
            for even, odd in zip(left[::2], left[1::2], strict=True)
        ]
        bit *= 2
    return jnp.broadcast_to(left[0], indices.shape)
