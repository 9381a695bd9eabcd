"""Arithmetic with torch's type promotion: a scalar, Python's or a tensor without
dimensions, never widens a tensor.

jax takes a tensor without dimensions for a full operand, so a float32 scale would turn
bfloat16 activations, and everything after them, into float32. And torch applies a
scalar to half-precision tensors in float32 (on a GPU always, on a CPU for most
operators), where rounding the scalar first would shift every element the same way.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.argument_checks import require
from tpuport.compat.convert import jax_dtype
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.complex_functions import quotient

Sized = jax.Array | np.ndarray | np.number | np.bool_
Operand = Sized | bool | int | float | complex

_HALF = ("bfloat16", "float16")
# Kinds of numbers, each of which contains the ones before it.
_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
_FLOATING, COMPLEX = 2, 3


def result_dtype(*operands: Operand) -> np.dtype:
    """The dtype that torch computes in: that of the operands with dimensions, unless
    another is of a higher kind.
    """
    numbers: list[Any] = []
    scalars: list[Any] = []
    dimensioned: list[Any] = []
    for operand in operands:
        if not isinstance(operand, Sized):
            numbers.append(_number_dtype(operand))
        elif operand.ndim:
            dimensioned.append(operand.dtype)
        else:
            scalars.append(operand.dtype)
    # Each class of operands decides over those before it.
    classes = filter(None, (numbers, scalars, dimensioned))
    return np.dtype(functools.reduce(_combine, map(_promote, classes)))


def _promote(dtypes: list[Any]) -> Any:
    return functools.reduce(jnp.promote_types, dtypes)


def _combine(lower: Any, higher: Any) -> Any:
    """torch's rule between two classes of operands: the higher class decides, within a
    kind.
    """
    if kind_rank(lower) <= kind_rank(higher):
        return higher
    # jax has no narrower complex type.
    if kind_rank(lower) == COMPLEX:
        return np.dtype(np.complex64)
    return jnp.promote_types(higher, lower)


def kind_rank(dtype: Any) -> int:
    """0 for bool, 1 for integers, 2 for floating and 3 for complex numbers."""
    return next(rank for rank, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind))


def _number_dtype(number: Any) -> np.dtype:
    match number:
        # Before int, which a bool is as well.
        case bool():
            return jax_dtype(torch.bool)
        case int():
            return jax_dtype(torch.int64)
        case float():
            return jax_dtype(torch.get_default_dtype())
        case _:
            return jax_dtype(torch.complex128)


def compute(
    function: Callable[..., jax.Array], dtype: np.dtype, *operands: Operand
) -> jax.Array:
    """Traced. Apply a function to operands cast to one dtype; half precision with a
    scalar is computed in float32.
    """
    has_scalar = any(
        not isinstance(operand, Sized) or operand.ndim == 0 for operand in operands
    )
    # torch's kernels read a scalar in float32, and round only the result.
    working = np.dtype(np.float32) if has_scalar and dtype.name in _HALF else dtype
    return function(*(jnp.asarray(operand, working) for operand in operands)).astype(
        dtype
    )


def _is_one(factor: Any) -> bool:
    """Whether a factor is 1 in every run; one that is an argument of the program may be
    anything.
    """
    return not isinstance(factor, jax.Array) and factor == 1


def add(x: Operand, y: Operand, alpha: int | float = 1) -> jax.Array:
    """Traced. `x + alpha * y`; on two bools the logical or."""
    if _is_one(alpha):
        return compute(jnp.add, result_dtype(x, y), x, y)
    return compute(lambda a, b, c: a + b * c, result_dtype(x, y), x, y, alpha)


def sub(x: Operand, y: Operand, alpha: int | float = 1) -> jax.Array:
    """Traced. `x - alpha * y`."""
    if _is_one(alpha):
        return compute(jnp.subtract, result_dtype(x, y), x, y)
    return compute(lambda a, b, c: a - b * c, result_dtype(x, y), x, y, alpha)


def mul(x: Operand, y: Operand) -> jax.Array:
    """Traced. `x * y`."""
    return compute(jnp.multiply, result_dtype(x, y), x, y)


def div(x: Operand, y: Operand) -> jax.Array:
    """Traced. `x / y`; integers give the default floating type."""
    dtype = _floating(result_dtype(x, y))
    is_complex = kind_rank(dtype) == COMPLEX
    return compute(quotient if is_complex else jnp.divide, dtype, x, y)


def power(x: Operand, y: Operand) -> jax.Array:
    """Traced. `x ** y`; a small whole number for an exponent is multiplied out."""
    dtype = result_dtype(x, y)
    x = jnp.asarray(x, dtype)
    if isinstance(y, int | float) and kind_rank(dtype) == _FLOATING:
        return _power_of_number(x, y)
    # jax multiplies out an exponent that is a Python int, and a bool is not one in
    # torch.
    if type(y) is int and kind_rank(dtype) != _FLOATING:
        is_allowed = y >= 0 or kind_rank(dtype) == COMPLEX
        require(is_allowed, "Integers to negative integer powers are not allowed.")
        return jnp.power(x, y).astype(dtype)
    y = jnp.asarray(y, dtype)
    if kind_rank(dtype) >= _FLOATING or dtype == jnp.bool_:
        return jnp.power(x, y).astype(dtype)
    # Of integers, only 1 and -1 have an inverse; jax has garbage for the others, torch
    # has 0.
    inverse = jnp.where(x == 1, 1, jnp.where(x == -1, 1 - 2 * (y & 1), 0))
    return jnp.where(y < 0, inverse, jnp.power(x, jnp.maximum(y, 0))).astype(dtype)


# As in torch, where a power of minus infinity to one half is NaN; it has none of halves
# with eleven bits.
_ROOTS = {0.5: jnp.sqrt, -0.5: jax.lax.rsqrt}
# Whole exponents up to this lose no digits where they are multiplied out, and those up
# to the other not even in halves.
_MULTIPLIED_OUT = 64
_MULTIPLIED_IN_HALVES = 3


def _power_of_number(x: jax.Array, exponent: int | float) -> jax.Array:
    """Traced. Floating-point numbers to a power; halves in float32."""
    if exponent in _ROOTS and x.dtype != jnp.float16:
        return _ROOTS[exponent](x)
    if 0 <= exponent <= _MULTIPLIED_IN_HALVES and exponent == int(exponent):
        return jnp.power(x, int(exponent))
    if x.dtype.name in _HALF:
        exponent = _rounded(exponent, x.dtype)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if abs(exponent) <= _MULTIPLIED_OUT and exponent == int(exponent):
        return jnp.power(wide, int(exponent)).astype(x.dtype)
    is_whole = exponent % 1 == 0
    is_odd = exponent % 2 == 1 if is_whole else None
    return signed_power(wide, jnp.asarray(exponent, wide.dtype), is_odd).astype(x.dtype)


def _rounded(number: int | float, dtype: np.dtype) -> float:
    with np.errstate(over="ignore"):
        rounded = float(np.asarray(number, dtype))
    overflows = math.isinf(rounded) and not math.isinf(number)
    require(not overflows, f"{number} cannot be converted to {dtype} without overflow")
    return rounded


def signed_power(
    x: jax.Array, exponent: jax.Array, is_odd: jax.Array | bool | None
) -> jax.Array:
    """Traced. `x ** exponent`, with the sign that it has by an exponent which is odd or
    not. The rounded one may not tell; None if it does.
    """
    result = jnp.power(x, exponent)
    if is_odd is None:
        return result
    is_negative = jnp.signbit(x) & is_odd
    return jnp.where(is_negative == jnp.signbit(result), result, -result)


def maximum(x: Operand, y: Operand) -> jax.Array:
    """Traced. The larger of two, elementwise."""
    return compute(jnp.maximum, result_dtype(x, y), x, y)


def minimum(x: Operand, y: Operand) -> jax.Array:
    """Traced. The smaller of two, elementwise."""
    return compute(jnp.minimum, result_dtype(x, y), x, y)


def atan2(x: Operand, y: Operand) -> jax.Array:
    """Traced. The angle of the point (y, x)."""
    return compute(_angle, _floating(result_dtype(x, y)), x, y)


def _angle(x: jax.Array, y: jax.Array) -> jax.Array:
    """XLA divides denormal numbers, which the device takes for 0 only then."""
    smallest = jnp.finfo(x.dtype).tiny
    parts = (jnp.where(jnp.abs(z) < smallest, jnp.copysign(0, z), z) for z in (x, y))
    return jnp.arctan2(*parts)


def copysign(x: Operand, y: Operand) -> jax.Array:
    """Traced. x with the sign of y."""
    return compute(jnp.copysign, _floating(result_dtype(x, y)), x, y)


def _floating(dtype: np.dtype) -> np.dtype:
    """The dtype, or the default floating type for integers."""
    return dtype if kind_rank(dtype) >= _FLOATING else _number_dtype(1.0)


def where(condition: jax.Array, x: Operand, y: Operand) -> jax.Array:
    """Traced. x where the condition holds, else y."""
    dtype = result_dtype(x, y)
    return jnp.where(condition, jnp.asarray(x, dtype), jnp.asarray(y, dtype))


_REASON = "a tensor without dimensions, or a number, changes the dtype or is rounded before it is used"

_aten = torch.ops.aten
_TARGETS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (_aten.add.Tensor, add),
    (_aten.add.Scalar, add),
    (_aten.sub.Tensor, sub),
    (_aten.sub.Scalar, sub),
    (_aten.mul.Tensor, mul),
    (_aten.mul.Scalar, mul),
    (_aten.div.Tensor, div),
    (_aten.div.Scalar, div),
    (_aten.pow.Tensor_Scalar, power),
    (_aten.pow.Tensor_Tensor, power),
    (_aten.pow.Scalar, power),
    (_aten.maximum.default, maximum),
    (_aten.minimum.default, minimum),
    (_aten.atan2.default, atan2),
    (_aten.copysign.Tensor, copysign),
    (_aten.copysign.Scalar, copysign),
    (_aten.where.self, where),
    (_aten.where.ScalarSelf, where),
    (_aten.where.ScalarOther, where),
    (_aten.where.Scalar, where),
)
LOWERINGS = tuple(
    Lowering(target, on_arrays(function), _REASON) for target, function in _TARGETS
)
METHODS = ()
