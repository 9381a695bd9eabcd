"""The incomplete gamma functions, and derivatives of the gamma function."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.host_operators import on_host
from tpuport.compat.operators.promotion import Operand, compute, result_dtype


def polygamma(n: int, x: Any) -> Any:
    """Traced. The n-th derivative of digamma; torch computes those beyond the first on
    the host.
    """
    function = _FIRST_POLYGAMMAS.get(n)
    if function is None:
        return on_host(_aten.polygamma.default)(n, x)
    # The result is cast to torch's dtype by `expectations`.
    return on_arrays(lambda array: function(_floating(array)))(x)


def igamma(a: Operand, x: Operand) -> jax.Array:
    """Traced. The regularized lower incomplete gamma function."""
    function = partial(_incomplete_gamma, jax.scipy.special.gammainc, 0.0)
    return compute(function, result_dtype(a, x), a, x)


def igammac(a: Operand, x: Operand) -> jax.Array:
    """Traced. The regularized upper incomplete gamma function."""
    function = partial(_incomplete_gamma, jax.scipy.special.gammaincc, 1.0)
    return compute(function, result_dtype(a, x), a, x)


def _incomplete_gamma(
    function: Callable[[jax.Array, jax.Array], jax.Array],
    at_zero: float,
    a: jax.Array,
    x: jax.Array,
) -> jax.Array:
    """With the values where an argument is 0, infinite or NaN in the order of torch's
    kernel.
    """
    are_both_infinite = jnp.isinf(a) & jnp.isinf(x)
    is_undefined = (x < 0) | (a < 0) | ((a == 0) & ~(x > 0)) | are_both_infinite
    return jnp.select(
        [is_undefined, a == 0, x == 0, jnp.isinf(a), jnp.isinf(x)],
        [jnp.nan, 1 - at_zero, at_zero, at_zero, 1 - at_zero],
        function(a, x),
    )


def digamma(x: jax.Array) -> jax.Array:
    """Traced. The derivative of the logarithm of the gamma function."""
    x = _floating(x)
    # Below 1/2 by reflection. The distance to the pole has all of x's digits; pi * x
    # would lose them.
    distance = x - jnp.round(x)
    positive = jax.scipy.special.digamma(jnp.where(x < 0.5, 1 - x, x))
    reflected = positive - jnp.pi / jnp.tan(jnp.pi * distance)
    at_zero = jnp.copysign(jnp.inf, -x)
    negative = jnp.where(distance == 0, jnp.where(x == 0, at_zero, jnp.nan), reflected)
    return jnp.where(x < 0.5, negative, positive)


def _floating(x: Operand) -> jax.Array:
    array = jnp.asarray(x)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _trigamma(x: jax.Array) -> jax.Array:
    # torch's own formula: what it gives at the poles, where it should be infinite, and
    # near them follows from how pi * x is rounded.
    pi = jnp.asarray(math.pi, x.dtype)
    sine = jnp.sin(pi * x)
    is_reflected = x < 0.5
    total = jnp.where(is_reflected, -(pi * pi) / (sine * sine), 0.0)
    at = jnp.where(is_reflected, 1 - x, x)
    for _ in range(6):
        total = total + 1 / (at * at)
        at = at + 1
    square = 1 / (at * at)
    series = 1 + 1 / (2 * at) + square * (1 / 6 - square * (1 / 30 - square / 42))
    total = total + series / at
    return jnp.where(is_reflected, -total, total)


_FIRST_POLYGAMMAS = {0: digamma, 1: _trigamma}


def polygamma_(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """`tensor.polygamma_(n)`."""
    return tensor.copy_(torch.polygamma(n, tensor))


_aten = torch.ops.aten
_LIMITS = "has other values at 0 and infinity"
LOWERINGS = (
    Lowering(
        _aten.polygamma.default,
        polygamma,
        "wrong below 0, rounds on the way, fails for n = 0",
    ),
    Lowering(_aten.polygamma_.default, polygamma_, "has no lowering"),
    Lowering(_aten.igamma.default, on_arrays(igamma), _LIMITS),
    Lowering(_aten.igammac.default, on_arrays(igammac), _LIMITS),
    Lowering(_aten.digamma.default, on_arrays(digamma), "loses digits near poles"),
)
METHODS = ()
