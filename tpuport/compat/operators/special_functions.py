"""The derivative of the logarithm of the gamma function."""

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays


def digamma(x: jax.Array) -> jax.Array:
    """Traced. Below 1/2 by reflection."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # The distance to the pole has all of x's digits; pi * x would lose them.
    distance = x - jnp.round(x)
    positive = jax.scipy.special.digamma(jnp.where(x < 0.5, 1 - x, x))
    reflected = positive - jnp.pi / jnp.tan(jnp.pi * distance)
    at_zero = jnp.copysign(jnp.inf, -x)
    negative = jnp.where(distance == 0, jnp.where(x == 0, at_zero, jnp.nan), reflected)
    return jnp.where(x < 0.5, negative, positive)


def polygamma_(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """`tensor.polygamma_(n)`."""
    return tensor.copy_(torch.polygamma(n, tensor))


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(_aten.polygamma_.default, polygamma_, "has no lowering"),
    Lowering(_aten.digamma.default, on_arrays(digamma), "loses digits near poles"),
)
METHODS = ()
