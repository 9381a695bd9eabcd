"""The gamma function's derivatives and the Hurwitz zeta function, also for negative arguments."""

import math

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.promotion import Operand


def polygamma(n: int, x: jax.Array) -> jax.Array:
    """Traced. The n-th derivative of digamma."""
    wide = _floating(x)
    values = _digamma(wide) if n == 0 else (-1) ** (n + 1) * math.factorial(n) * zeta(n + 1, wide)
    return values.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else values


def digamma(x: jax.Array) -> jax.Array:
    """Traced. The derivative of the logarithm of the gamma function."""
    return polygamma(0, x)


def _floating(x: Operand) -> jax.Array:
    array = jnp.asarray(x)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _digamma(x: jax.Array) -> jax.Array:
    # Below 1/2 by reflection. The distance to the pole has all of x's digits; pi * x would lose them.
    distance = x - jnp.round(x)
    positive = jax.scipy.special.digamma(jnp.where(x < 0.5, 1 - x, x))
    reflected = positive - jnp.pi / jnp.tan(jnp.pi * distance)
    at_zero = jnp.copysign(jnp.inf, -x)
    negative = jnp.where(distance == 0, jnp.where(x == 0, at_zero, jnp.nan), reflected)
    return jnp.where(x < 0.5, negative, positive)


def zeta(s: Operand, q: Operand) -> jax.Array:
    """Traced. The sum of `(q + k) ** -s` over k = 0, 1, ..., elementwise."""
    s, q = jnp.broadcast_arrays(_floating(s), _floating(q))
    is_whole = q == jnp.floor(q)
    start = jnp.where(is_whole & (q <= 0), 1, q)

    # jax has it for q > 0 only: the terms before that are added one by one.
    def add_term(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, at = state
        return jnp.where(at < 0, total + jnp.power(at, -s), total), jnp.where(at < 0, at + 1, at)

    total, positive = jax.lax.while_loop(
        lambda state: jnp.any(state[1] < 0), add_term, (jnp.zeros_like(start), start)
    )
    values = total + jax.scipy.special.zeta(s, positive)
    values = jnp.where(is_whole & (q <= 0), jnp.inf, values)
    values = jnp.where(~is_whole & (q < 0) & (s != jnp.floor(s)), jnp.nan, values)
    return jnp.where(s == 1, jnp.inf, jnp.where(s < 1, jnp.nan, values))


def polygamma_(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """`tensor.polygamma_(n)`."""
    return tensor.copy_(torch.polygamma(n, tensor))


_aten = torch.ops.aten
_NEGATIVE = "wrong below 0"
LOWERINGS = (
    Lowering(
        _aten.polygamma.default, on_arrays(polygamma), "wrong below 0, rounds on the way, fails for n = 0"
    ),
    Lowering(_aten.polygamma_.default, polygamma_, "has no lowering", is_view_op=True),
    Lowering(_aten.digamma.default, on_arrays(digamma), "loses digits near poles"),
    Lowering(_aten.special_zeta.default, on_arrays(zeta), _NEGATIVE),
    Lowering(_aten.special_zeta.other_scalar, on_arrays(zeta), _NEGATIVE),
    Lowering(_aten.special_zeta.self_scalar, on_arrays(zeta), _NEGATIVE),
)
METHODS = ()
