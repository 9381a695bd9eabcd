"""Elementary functions of complex numbers with infinities and NaN among their parts,
and on the sides of their cuts.

torch has what Annex G of C99 says: an infinite part is infinite beside NaN, and the
sign of a zero is the side of a cut. XLA computes both parts by one formula, which makes
NaN of infinity times zero, and has one side. Those that no model needs, torch computes
on the host.

Names: a number is x + iy.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.host_operators import on_host

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


def _exp(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    size = jnp.exp(x)
    is_lost = ~jnp.isfinite(y)
    real = jnp.where(y == 0, size, size * jnp.cos(y))
    imaginary = jnp.where(y == 0, y, size * jnp.sin(y))
    real = jnp.where(is_lost & jnp.isinf(x), size, real)
    zero = jnp.copysign(jnp.zeros_like(y), y)
    return real, jnp.where(is_lost & jnp.isneginf(x), zero, imaginary)


def _log(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.log(_abs(x, y)), jnp.arctan2(y, x)


def _abs(x: jax.Array, y: jax.Array) -> jax.Array:
    is_infinite = jnp.isinf(x) | jnp.isinf(y)
    return jnp.where(is_infinite, jnp.inf, x + y)


def absolute(z: jax.Array) -> jax.Array:
    """Traced. `|z|`, infinite where a part is; also of real numbers."""
    if not jnp.iscomplexobj(z):
        return jnp.abs(z)
    fixed = jax.lax.stop_gradient(z)
    return jnp.where(jnp.isfinite(fixed), jnp.abs(z), _abs(fixed.real, fixed.imag))


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


def _by_halves(function: Function) -> Function:
    """A function of complex numbers by its values above the real axis.

    Its results for conjugates are conjugates; so the sign of a zero says on which side
    of a cut a number is.
    """

    def computed(z: jax.Array) -> jax.Array:
        is_below = jnp.signbit(z.imag)
        above = function(jnp.where(is_below, z.conj(), z))
        return jnp.where(is_below, above.conj(), above)

    return computed


def _log_of_finite(z: jax.Array) -> jax.Array:
    # XLA has no angle of denormal numbers, which count as zeros.
    parts = (
        jnp.where(part == 0, jnp.copysign(jnp.zeros_like(part), part), part)
        for part in (z.real, z.imag)
    )
    return jnp.log(jax.lax.complex(*parts))


FUNCTIONS: dict[str, Function] = {
    "abs": absolute,
    "exp": _where_infinite(_exp, _by_halves(jnp.exp)),
    "log": _where_infinite(_log, _by_halves(_log_of_finite)),
}
# No model has these of complex numbers.
ON_HOST = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp2", "expm1", "log10", "log2",
    "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


# These lose digits of halves on the way, or fail on bools.
_IN_FLOAT32 = {"exp2", "rsqrt"}


def _of_any(
    name: str, of_complex: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., Any]:
    """An operator by torchax's lowering, but of complex numbers."""

    @on_arrays
    def of_real(x: jax.Array) -> jax.Array:
        from torchax.ops.ops_registry import all_aten_ops

        lowering: Any = all_aten_ops[getattr(_aten, name)].func
        # The result is cast to torch's dtype by `expectations`.
        is_narrow = name in _IN_FLOAT32 and x.dtype.itemsize < 4
        return lowering(x.astype(jnp.float32) if is_narrow else x)

    def compute(x: torch.Tensor) -> torch.Tensor:
        return of_complex(x) if x.dtype.is_complex else of_real(x)

    return compute


_aten = torch.ops.aten
LOWERINGS = (
    *(
        Lowering(
            getattr(_aten, name).default,
            _of_any(name, on_arrays(function)),
            "has NaN for infinities of complex numbers, and one side of each cut",
        )
        for name, function in FUNCTIONS.items()
    ),
    *(
        Lowering(
            getattr(_aten, name).default,
            _of_any(name, on_host(getattr(_aten, name).default)),
            "has NaN for infinities of complex numbers, and one side of each cut",
        )
        for name in ON_HOST
    ),
    Lowering(
        _aten.reciprocal.default,
        _of_any("reciprocal", on_arrays(_reciprocal)),
        "divides by an infinite number",
    ),
    Lowering(
        _aten.neg.default,
        _of_any("neg", on_arrays(jnp.negative)),
        "multiplies by -1, which makes NaN of complex infinities",
    ),
)
METHODS = ()
