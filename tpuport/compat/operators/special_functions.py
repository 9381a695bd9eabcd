"""Derivatives of the gamma function, the Hurwitz zeta function, and some Bessel
functions.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.convert import as_jax, wrap
from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.promotion import Operand, compute, result_dtype


def polygamma(n: int, x: jax.Array) -> jax.Array:
    """Traced. The n-th derivative of digamma."""
    wide = _floating(x)
    if n in _FIRST_POLYGAMMAS:
        values = _FIRST_POLYGAMMAS[n](wide)
    else:
        values = (-1) ** (n + 1) * math.factorial(n) * zeta(n + 1, wide)
    return values.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else values


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
    return polygamma(0, x)


def _floating(x: Operand) -> jax.Array:
    array = jnp.asarray(x)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _digamma(x: jax.Array) -> jax.Array:
    # Below 1/2 by reflection. The distance to the pole has all of x's digits; pi * x
    # would lose them.
    distance = x - jnp.round(x)
    positive = jax.scipy.special.digamma(jnp.where(x < 0.5, 1 - x, x))
    reflected = positive - jnp.pi / jnp.tan(jnp.pi * distance)
    at_zero = jnp.copysign(jnp.inf, -x)
    negative = jnp.where(distance == 0, jnp.where(x == 0, at_zero, jnp.nan), reflected)
    return jnp.where(x < 0.5, negative, positive)


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


_FIRST_POLYGAMMAS = {0: _digamma, 1: _trigamma}


def zeta(s: Operand, q: Operand) -> jax.Array:
    """Traced. The sum of `(q + k) ** -s` over k = 0, 1, ..., elementwise."""
    s, q = jnp.broadcast_arrays(_floating(s), _floating(q))
    is_whole = q == jnp.floor(q)
    start = jnp.where(is_whole & (q <= 0), 1, q)

    # jax has it for q > 0 only: the terms before that are added one by one.
    def add_term(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, at = state
        return jnp.where(at < 0, total + jnp.power(at, -s), total), jnp.where(
            at < 0, at + 1, at
        )

    total, positive = jax.lax.while_loop(
        lambda state: jnp.any(state[1] < 0), add_term, (jnp.zeros_like(start), start)
    )
    # Of a high power nothing is left but the first term, and jax has NaN.
    low = jnp.minimum(s, _HIGHEST_POWER)
    sums = jax.scipy.special.zeta(low, positive)
    values = total + jnp.where(s > low, jnp.power(positive, -s), sums)
    # torch multiplies zero by infinity there.
    is_lost = jnp.isposinf(q) | (jnp.isposinf(s) & (q > 1))
    values = jnp.where(is_lost, jnp.nan, values)
    values = jnp.where(is_whole & (q <= 0), jnp.inf, values)
    values = jnp.where(~is_whole & (q < 0) & (s != jnp.floor(s)), jnp.nan, values)
    return jnp.where(s == 1, jnp.inf, jnp.where(s < 1, jnp.nan, values))


def erfcx(x: jax.Array) -> jax.Array:
    """Traced. `exp(x * x) * erfc(x)`, also where that is infinity times zero."""
    wide = _floating(x)
    near = jnp.exp(wide * wide) * jax.lax.erfc(wide)
    far = jnp.maximum(wide, _FAR)
    # The asymptotic series, to the last term that float32 can see.
    term = total = jnp.ones_like(far)
    for number in range(1, 8):
        term = term * (0.5 - number) / (far * far)
        total = total + term
    return jnp.where(wide < _FAR, near, total / (far * math.sqrt(math.pi)))


def scaled_modified_bessel_k(order: int, x: jax.Array) -> jax.Array:
    """Traced. `exp(x) * K(x)` of the modified Bessel function of the second kind and of
    order 0 or 1.
    """
    wide = _floating(x)
    unscaled = (
        torch.ops.aten.special_modified_bessel_k0
        if order == 0
        else torch.ops.aten.special_modified_bessel_k1
    )
    near = jnp.exp(wide) * as_jax(unscaled(wrap(jnp.minimum(wide, 2.0))))
    safe = jnp.maximum(wide, 2.0)
    far = _chebyshev_sum(8.0 / safe - 2.0, _BESSEL_K[order]) / jnp.sqrt(safe)
    return jnp.where(wide <= 2.0, near, far)


def _chebyshev_sum(x: jax.Array, coefficients: tuple[float, ...]) -> jax.Array:
    """Clenshaw's sum of Chebyshev polynomials, the highest first, by twice their
    variable.
    """
    before = present = jnp.zeros_like(x)
    last = before
    for coefficient in coefficients:
        last, before = before, present
        present = x * before - last + coefficient
    return 0.5 * (present - last)


def spherical_bessel_j0(x: jax.Array) -> jax.Array:
    """Traced. `sin(x) / x`."""
    wide = _floating(x)
    safe = jnp.where((wide == 0) | jnp.isinf(wide), 1.0, wide)
    return jnp.where(
        wide == 0, 1.0, jnp.where(jnp.isinf(wide), 0.0, jnp.sin(safe) / safe)
    )


# From here the series of erfcx has all digits of float32.
_FAR = 5.0
# 2 to this power is beyond float32.
_HIGHEST_POWER = 150.0

# Cephes' expansions of exp(x) * sqrt(x) * K(x) beyond 2, without terms below float32.
_BESSEL_K = (
    (
        1.855949115e-11, -7.957489244e-11, 3.577397281e-10, -1.697534509e-09, 8.574034017e-09, -4.660489898e-08,
        2.766813639e-07, -1.831755523e-06, 1.394981372e-05, -0.0001284954958, 0.001569883886, -0.03144810131,
        2.440303082,
    ),
    (
        -2.129967838e-11, 9.218315188e-11, -4.190354759e-10, 2.015049755e-09, -1.034576247e-08, 5.741084125e-08,
        -3.501960603e-07, 2.406484948e-06, -1.936197974e-05, 0.0001952155185, -0.00285781686, 0.1039237366,
        2.72062619,
    ),
)  # fmt: skip


def polygamma_(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """`tensor.polygamma_(n)`."""
    return tensor.copy_(torch.polygamma(n, tensor))


_aten = torch.ops.aten
_MISSING = "has no lowering"
_NEGATIVE = "wrong below 0"
_LIMITS = "has other values at 0 and infinity"
LOWERINGS = (
    Lowering(
        _aten.polygamma.default,
        on_arrays(polygamma),
        "wrong below 0, rounds on the way, fails for n = 0",
    ),
    Lowering(_aten.polygamma_.default, polygamma_, "has no lowering"),
    Lowering(
        _aten.special_scaled_modified_bessel_k0.default,
        on_arrays(partial(scaled_modified_bessel_k, 0)),
        _MISSING,
    ),
    Lowering(
        _aten.special_scaled_modified_bessel_k1.default,
        on_arrays(partial(scaled_modified_bessel_k, 1)),
        _MISSING,
    ),
    Lowering(
        _aten.special_spherical_bessel_j0.default,
        on_arrays(spherical_bessel_j0),
        _MISSING,
    ),
    Lowering(_aten.special_erfcx.default, on_arrays(erfcx), "gives NaN beyond 9"),
    Lowering(_aten.igamma.default, on_arrays(igamma), _LIMITS),
    Lowering(_aten.igammac.default, on_arrays(igammac), _LIMITS),
    Lowering(_aten.digamma.default, on_arrays(digamma), "loses digits near poles"),
    Lowering(_aten.special_zeta.default, on_arrays(zeta), _NEGATIVE),
    Lowering(_aten.special_zeta.other_scalar, on_arrays(zeta), _NEGATIVE),
    Lowering(_aten.special_zeta.self_scalar, on_arrays(zeta), _NEGATIVE),
)
METHODS = ()
