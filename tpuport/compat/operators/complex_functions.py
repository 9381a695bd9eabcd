"""Elementary functions of complex numbers with infinities and NaN among their parts,
and on the sides of their cuts.

torch has what Annex G of C99 says: an infinite part is infinite beside NaN, and the
sign of a zero is the side of a cut. XLA computes both parts by one formula, which makes
NaN of infinity times zero, and has one side.

Names: a number is x + iy.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays

Function = Callable[[jax.Array], jax.Array]
# Gives both parts of the result from both parts of the argument.
OfParts = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def _where_infinite(at_limits: OfParts, function: Function) -> Function:
    """A function of complex numbers, with other results where a part is infinite or
    NaN.
    """

    @functools.wraps(function)
    def computed(z: jax.Array) -> jax.Array:
        fixed = jax.lax.stop_gradient(z)
        limits = jax.lax.complex(*at_limits(fixed.real, fixed.imag))
        return jnp.where(jnp.isfinite(fixed), function(z), limits)

    return computed


def _swapped(at_limits: OfParts) -> OfParts:
    """The trigonometric function of a hyperbolic one, `sin(x + iy)` of
    `sinh(y + ix)`, or the reverse.
    """

    def of_swapped(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        imaginary, real = at_limits(y, x)
        return real, imaginary

    return of_swapped


def _exp(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    size = jnp.exp(x)
    is_lost = ~jnp.isfinite(y)
    real = jnp.where(y == 0, size, size * jnp.cos(y))
    imaginary = jnp.where(y == 0, y, size * jnp.sin(y))
    real = jnp.where(is_lost & jnp.isinf(x), size, real)
    zero = jnp.copysign(jnp.zeros_like(y), y)
    return real, jnp.where(is_lost & jnp.isneginf(x), zero, imaginary)


def _exp2(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _exp(x * math.log(2), y * math.log(2))


def _expm1(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    # torch's own formula.
    half = jnp.sin(y / 2)
    return jnp.expm1(x) * jnp.cos(y) - 2 * half * half, jnp.exp(x) * jnp.sin(y)


def _log(
    x: jax.Array, y: jax.Array, base: float = math.e
) -> tuple[jax.Array, jax.Array]:
    scale = 1 / math.log(base)
    return jnp.log(_abs(x, y)) * scale, jnp.arctan2(y, x) * scale


def _sqrt(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_nan = jnp.isnan(y)
    infinite = jnp.full_like(x, jnp.inf)
    zero = jnp.where(is_nan, jnp.nan, 0.0)
    real = jnp.where(
        jnp.isposinf(x), infinite, jnp.where(jnp.isneginf(x), zero, jnp.nan)
    )
    imaginary = jnp.where(
        jnp.isneginf(x),
        jnp.copysign(infinite, y),
        jnp.where(jnp.isposinf(x), jnp.copysign(zero, y), jnp.nan),
    )
    is_infinite = jnp.isinf(y)
    return jnp.where(is_infinite, infinite, real), jnp.where(is_infinite, y, imaginary)


def _sinh(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_lost = ~jnp.isfinite(y)
    real = jnp.where(y == 0, jnp.sinh(x), jnp.sinh(x) * jnp.cos(y))
    real = jnp.where(is_lost & (x == 0), x, real)
    real = jnp.where(is_lost & jnp.isinf(x), jnp.inf, real)
    return real, jnp.where(y == 0, y, jnp.cosh(x) * jnp.sin(y))


def _cosh(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_lost = ~jnp.isfinite(y)
    real = jnp.where(y == 0, jnp.cosh(x), jnp.cosh(x) * jnp.cos(y))
    real = jnp.where(is_lost & jnp.isinf(x), jnp.inf, real)
    imaginary = jnp.where(
        y == 0,
        jnp.where(jnp.signbit(x) & ~jnp.isnan(x), -y, y),
        jnp.sinh(x) * jnp.sin(y),
    )
    return real, jnp.where(is_lost & (x == 0), 0.0, imaginary)


def _tanh(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_infinite = jnp.isinf(x)
    turned = jnp.where(jnp.isfinite(y) & (jnp.abs(y) > 1), jnp.sin(2 * y), y)
    real = jnp.where(x == 0, x, jnp.nan)
    real = jnp.where(y == 0, x, real)
    imaginary = jnp.where(y == 0, y, jnp.nan)
    return (
        jnp.where(is_infinite, jnp.copysign(jnp.ones_like(x), x), real),
        jnp.where(is_infinite, jnp.copysign(jnp.zeros_like(y), turned), imaginary),
    )


def _asinh(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_infinite = jnp.isinf(x) | jnp.isinf(y)
    real = jnp.where(is_infinite, jnp.copysign(jnp.full_like(x, jnp.inf), x), jnp.nan)
    angle = jnp.copysign(jnp.arctan2(jnp.abs(y), jnp.abs(x)), y)
    return real, jnp.where(is_infinite, angle, jnp.where(y == 0, y, jnp.nan))


def _atanh(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_infinite = jnp.isinf(x) | jnp.isinf(y)
    real = jnp.where(is_infinite, jnp.copysign(jnp.zeros_like(x), x), jnp.nan)
    angle = jnp.where(is_infinite & ~jnp.isnan(y), math.pi / 2, jnp.nan)
    return jnp.where(x == 0, x, real), jnp.copysign(angle, y)


def _acosh(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    is_infinite = jnp.isinf(x) | jnp.isinf(y)
    angle = jnp.where(is_infinite, jnp.arctan2(jnp.abs(y), x), jnp.nan)
    angle = jnp.where(jnp.isnan(y) & (x == 0), math.pi / 2, angle)
    return jnp.where(is_infinite, jnp.inf, jnp.nan), jnp.copysign(angle, y)


def _acos(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    imaginary, real = _acosh(x, y)
    return jnp.abs(real), -jnp.copysign(imaginary, y)


def _abs(x: jax.Array, y: jax.Array) -> jax.Array:
    is_infinite = jnp.isinf(x) | jnp.isinf(y)
    return jnp.where(is_infinite, jnp.inf, x + y)


def absolute(z: jax.Array) -> jax.Array:
    """Traced. `|z|`, infinite where a part is; also of real numbers."""
    if not jnp.iscomplexobj(z):
        return jnp.abs(z)
    fixed = jax.lax.stop_gradient(z)
    return jnp.where(jnp.isfinite(fixed), jnp.abs(z), _abs(fixed.real, fixed.imag))


_NEITHER, _EVEN, _ODD = 0, 1, -1


def quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    """Traced. `a / b` of complex numbers; by Smith's method, which is torch's, where a
    part is infinite or NaN, or b is zero.
    """
    a, b = jnp.broadcast_arrays(a, b)
    top, below = jax.lax.stop_gradient((a, b))
    is_turned = jnp.abs(below.real) < jnp.abs(below.imag)
    larger = jnp.where(is_turned, below.imag, below.real)
    smaller = jnp.where(is_turned, below.real, below.imag)
    ratio = smaller / larger
    scale = 1 / (larger + smaller * ratio)
    real, imaginary = top.real, top.imag
    limits = jax.lax.complex(
        jnp.where(is_turned, real * ratio + imaginary, real + imaginary * ratio)
        * scale,
        jnp.where(is_turned, imaginary * ratio - real, imaginary - real * ratio)
        * scale,
    )
    # torch's zeros have no sign there.
    by_zero = jax.lax.complex(
        real / jnp.abs(below.real), imaginary / jnp.abs(below.imag)
    )
    is_zero = (below.real == 0) & (below.imag == 0)
    limits = jnp.where(is_zero, by_zero, limits)
    is_finite = jnp.isfinite(top) & jnp.isfinite(below) & ~is_zero
    return jnp.where(is_finite, a / b, limits)


def _reciprocal(z: jax.Array) -> jax.Array:
    return quotient(jnp.ones_like(z), z)


def _rsqrt(z: jax.Array) -> jax.Array:
    root = FUNCTIONS["sqrt"](z)
    return jnp.where(root == 0, jnp.nan * (1 + 1j), _reciprocal(root))


def _by_quadrant(function: Function, parity: int) -> Function:
    """A function of complex numbers by its values in the first quadrant.

    Its results for conjugates are conjugates; so the sign of a zero says on which side
    of a cut a number is.

    Args:
        parity: of the function; one that is neither even nor odd is taken from the
            first two quadrants.
    """

    def computed(z: jax.Array) -> jax.Array:
        is_turned = jnp.signbit(z.real) & (parity != _NEITHER)
        turned = jnp.where(is_turned, -z, z)
        is_below = jnp.signbit(turned.imag)
        above = function(jnp.where(is_below, turned.conj(), turned))
        value = jnp.where(is_below, above.conj(), above)
        return jnp.where(is_turned, -value if parity == _ODD else value, value)

    return computed


def _sinh_of_finite(z: jax.Array) -> jax.Array:
    value = jnp.sinh(z)
    # XLA's zero has no sign.
    real = jnp.where(z.real == 0, z.real * jnp.cos(z.imag), value.real)
    return jax.lax.complex(real, value.imag)


def _log_of_finite(z: jax.Array, base: float = math.e) -> jax.Array:
    # XLA has no angle of denormal numbers, which count as zeros.
    parts = (
        jnp.where(part == 0, jnp.copysign(jnp.zeros_like(part), part), part)
        for part in (z.real, z.imag)
    )
    value = jnp.log(jax.lax.complex(*parts))
    scale = 1 / math.log(base)
    return jax.lax.complex(value.real * scale, value.imag * scale)


def _expm1_of_finite(z: jax.Array) -> jax.Array:
    return jnp.where(z == 0, z, jnp.expm1(z))


def _of_swapped(function: Function) -> Function:
    """As `_swapped`, of finite numbers."""

    def computed(z: jax.Array) -> jax.Array:
        value = function(jax.lax.complex(z.imag, z.real))
        return jax.lax.complex(value.imag, value.real)

    return computed


FUNCTIONS: dict[str, Function] = {
    name: _where_infinite(at_limits, _by_quadrant(function, parity))
    for name, at_limits, function, parity in (
        ("exp", _exp, jnp.exp, _NEITHER),
        ("exp2", _exp2, jnp.exp2, _NEITHER),
        ("expm1", _expm1, _expm1_of_finite, _NEITHER),
        ("log", _log, _log_of_finite, _NEITHER),
        *(
            (
                f"log{base:g}",
                functools.partial(_log, base=base),
                functools.partial(_log_of_finite, base=base),
                _NEITHER,
            )
            for base in (2.0, 10.0)
        ),
        ("sqrt", _sqrt, jnp.sqrt, _NEITHER),
        ("sinh", _sinh, _sinh_of_finite, _ODD),
        ("cosh", _cosh, jnp.cosh, _EVEN),
        ("tanh", _tanh, jnp.tanh, _ODD),
        ("sin", _swapped(_sinh), _of_swapped(_sinh_of_finite), _ODD),
        ("tan", _swapped(_tanh), jnp.tan, _ODD),
        ("asinh", _asinh, jnp.arcsinh, _ODD),
        ("acosh", _acosh, jnp.arccosh, _NEITHER),
        ("atanh", _atanh, jnp.arctanh, _ODD),
        ("asin", _swapped(_asinh), jnp.arcsin, _ODD),
        ("acos", _acos, jnp.arccos, _NEITHER),
        ("atan", _swapped(_atanh), _of_swapped(jnp.arctanh), _ODD),
    )
}
FUNCTIONS |= {
    "abs": absolute,
    "cos": lambda z: FUNCTIONS["cosh"](jax.lax.complex(-z.imag, z.real)),
}


# These lose digits of halves on the way, or fail on bools.
_IN_FLOAT32 = {"exp2", "rsqrt"}


def _of_any(name: str, of_complex: Function) -> Callable[..., Any]:
    """An operator by torchax's lowering, but of complex numbers."""

    def compute(x: jax.Array) -> jax.Array:
        from torchax.ops.ops_registry import all_aten_ops

        if jnp.iscomplexobj(x):
            return of_complex(x)
        lowering: Any = all_aten_ops[getattr(_aten, name)].func
        # The result is cast to torch's dtype by `expectations`.
        is_narrow = name in _IN_FLOAT32 and x.dtype.itemsize < 4
        return lowering(x.astype(jnp.float32) if is_narrow else x)

    return on_arrays(compute)


_aten = torch.ops.aten
LOWERINGS = (
    *(
        Lowering(
            getattr(_aten, name).default,
            _of_any(name, function),
            "has NaN for infinities of complex numbers, and one side of each cut",
        )
        for name, function in FUNCTIONS.items()
    ),
    *(
        Lowering(
            getattr(_aten, name).default,
            _of_any(name, function),
            "divides by an infinite number",
        )
        for name, function in (("reciprocal", _reciprocal), ("rsqrt", _rsqrt))
    ),
    Lowering(
        _aten.neg.default,
        _of_any("neg", jnp.negative),
        "multiplies by -1, which makes NaN of complex infinities",
    ),
)
METHODS = ()
