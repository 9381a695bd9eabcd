"""Elementwise operators and small products that torchax computes otherwise than
torch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat import narrowing
from tpuport.compat.convert import is_ported, jax_dtype, wrap
from tpuport.compat.declarations import Lowering, on_arrays, overloads
from tpuport.compat.operators.promotion import (
    COMPLEX,
    Operand,
    Sized,
    atan2,
    compute,
    kind_rank,
    power,
    result_dtype,
    signed_power,
)
from tpuport.errors import MissingDtypeError


def fmod(x: Operand, y: Operand) -> jax.Array:
    """Traced. The remainder with x's sign."""
    dtype = result_dtype(x, y)
    # Unlike the factor of a product, a scalar is rounded first.
    return compute(jnp.fmod, dtype, jnp.asarray(x, dtype), jnp.asarray(y, dtype))


def hardtanh(
    x: jax.Array, min_val: int | float = -1, max_val: int | float = 1
) -> jax.Array:
    """Traced. Limited to a range, whose ends are cast to x's dtype."""
    low, high = (jnp.asarray(end).astype(x.dtype) for end in (min_val, max_val))
    return jnp.clip(x, low, high)


def addbmm(
    x: jax.Array,
    left: jax.Array,
    right: jax.Array,
    *,
    beta: int | float = 1,
    alpha: int | float = 1,
) -> jax.Array:
    """Traced. `beta * x + alpha * sum of the products`; with beta 0 even NaN in x does
    not count.
    """
    if not jnp.issubdtype(left.dtype, jnp.inexact):
        # In torch a factor of integers is an integer.
        alpha, beta = int(alpha), int(beta)
    working = _accumulator(left.dtype)
    result = (
        jnp.einsum("bxy,byz->xz", left, right, preferred_element_type=working) * alpha
    )
    if beta != 0:
        result = result + x.astype(working) * beta
    return result.astype(left.dtype)


def matmul(x: Any, y: Any, **options: Any) -> torch.Tensor:
    """`torch.matmul(x, y)`, whose leading dimensions stay apart, so that a mesh can go
    on dividing each of them.
    """
    if options or not _is_product_of_stacks(x, y):
        # torch takes it apart into other operators, and has the errors for what does
        # not fit.
        return torch.matmul(x, y, **options)
    return wrap(jnp.matmul(x.jax(), y.jax()))


def _is_product_of_stacks(x: Any, y: Any) -> bool:
    """Whether this is a valid product with several leading dimensions, which torch
    joins into one.
    """
    if not (
        is_ported(x)
        and is_ported(y)
        and x.dtype == y.dtype
        and x.dtype.is_floating_point
    ):
        return False
    if min(x.ndim, y.ndim) < 2 or max(x.ndim, y.ndim) < 4 or x.shape[-1] != y.shape[-2]:
        return False
    pairs = zip(x.shape[-3::-1], y.shape[-3::-1], strict=False)
    return all(left == right or 1 in (left, right) for left, right in pairs)


def addbmm_(
    tensor: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> torch.Tensor:
    """`tensor.addbmm_(left, right)`, which in torch gives the tensor the shape of the
    products if it has another.
    """
    result = _aten.addbmm.default(tensor, left, right, beta=beta, alpha=alpha)
    if result.shape == tensor.shape:
        return tensor.copy_(result)
    tensor.resize_(result.shape)
    return tensor.copy_(result)


def _accumulator(dtype: Any) -> Any:
    return (
        jnp.promote_types(dtype, jnp.float32)
        if jnp.issubdtype(dtype, jnp.floating)
        else dtype
    )


def make_complex(real: jax.Array, imaginary: jax.Array) -> jax.Array:
    """Traced. `real + 1j * imaginary`."""
    refuse_complex_halves("torch.complex", real, imaginary)
    if real.dtype != imaginary.dtype or not jnp.issubdtype(real.dtype, jnp.floating):
        raise RuntimeError(
            f"complex() expects two floating tensors of one dtype, not {real.dtype} and {imaginary.dtype}"
        )
    return jax.lax.complex(*jnp.broadcast_arrays(real, imaginary))


def refuse_complex_halves(name: str, *parts: jax.Array) -> None:
    """Raise for halves that are to be the parts of complex numbers."""
    if any(part.dtype == jnp.float16 for part in parts):
        raise MissingDtypeError(
            f"{name} of float16 gives complex32, which the device does not have",
            fix="compute in complex64: convert the halves first, x.float()",
        )


def view_as_complex(x: jax.Array) -> jax.Array:
    """Traced. Pairs along the last dimension as complex numbers."""
    refuse_complex_halves("torch.view_as_complex", x)
    return jax.lax.complex(x[..., 0], x[..., 1])


def allclose(
    x: jax.Array,
    y: jax.Array,
    rtol: int | float = 1e-5,
    atol: int | float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    """Whether all elements agree, as a Python bool, which is not known while
    tracing.
    """
    return bool(jnp.allclose(x, y, rtol, atol, equal_nan))


def angle(x: jax.Array) -> jax.Array:
    """Traced. The angle of complex numbers; of others 0 or pi, and NaN of NaN."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return atan2(x.imag, x.real)
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
    return jnp.where(jnp.isnan(x), jnp.nan, jnp.where(x < 0, jnp.pi, 0)).astype(dtype)


def float_power(x: Any, exponent: Any, *, out: Any = None) -> Any:
    """`torch.float_power`, in the widest floating type that the device has.

    Whether an exponent is odd, which decides the sign of a power of negative numbers,
    is asked of the exponent as it is: the type may have fewer digits.
    """
    if out is not None:
        return _aten.float_power(x, exponent, out=out)
    result = _wide_power(x, exponent)
    wide = torch.complex128 if result.dtype.is_complex else torch.float64
    if result.dtype is not wide:
        narrowing.warn(wide)
    return result


@on_arrays
def _wide_power(x: Operand, exponent: Operand) -> jax.Array:
    """Traced. The power in float64 or complex128, or what the device has for them."""
    torch.broadcast_shapes(jnp.shape(x), jnp.shape(exponent))  # raises torch's error
    is_complex = kind_rank(result_dtype(x, exponent)) == COMPLEX
    base = jnp.asarray(x, jax_dtype(torch.complex128 if is_complex else torch.float64))
    if not isinstance(exponent, Sized):
        return power(base, exponent)
    exponent = jnp.asarray(exponent)
    is_integer = jnp.issubdtype(exponent.dtype, jnp.integer)
    is_odd = exponent & 1 == 1 if is_integer and not is_complex else None
    return signed_power(base, exponent.astype(base.dtype), is_odd)


def isclose(
    x: Operand,
    y: Operand,
    rtol: int | float = 1e-5,
    atol: int | float = 1e-8,
    equal_nan: bool = False,
) -> jax.Array:
    """Traced. Whether elements agree up to `atol + rtol * abs(y)`; a tensor of the host
    is a number here.
    """
    dtypes = {operand.dtype for operand in (x, y) if isinstance(operand, jax.Array)}
    if len(dtypes) > 1:
        raise RuntimeError(f"isclose() expects two tensors of one dtype, not {dtypes}")
    if rtol < 0 or atol < 0:
        raise RuntimeError(
            f"isclose() expects tolerances of at least 0, not rtol={rtol} and atol={atol}"
        )
    dtype = dtypes.pop()
    return jnp.isclose(
        jnp.asarray(x, dtype), jnp.asarray(y, dtype), rtol, atol, equal_nan
    )


_aten = torch.ops.aten
_TENSOR_FOR_BOOL = "gives a tensor for a bool"
_JOINS_HEADS = "joins batch and heads, which a mesh can divide only apart"
LOWERINGS = (
    Lowering(_aten.fmod.Tensor, on_arrays(fmod), "loses digits, and infinity"),
    Lowering(_aten.fmod.Scalar, on_arrays(fmod), "loses digits, and infinity"),
    Lowering(
        _aten.hardtanh.default,
        on_arrays(hardtanh),
        "turns integers into floating-point numbers",
    ),
    *(
        Lowering(target, on_arrays(function), "computes the logical operation")
        for name, function in (
            ("__and__", jnp.bitwise_and),
            ("__or__", jnp.bitwise_or),
            ("__xor__", jnp.bitwise_xor),
        )
        for target in overloads(name)
    ),
    Lowering(
        _aten.addbmm_.default,
        addbmm_,
        "does not give the tensor the shape of the products",
    ),
    Lowering(
        _aten.view_as_complex.default,
        on_arrays(view_as_complex),
        "does not name what halves lack",
    ),
    Lowering(
        _aten.addbmm.default, on_arrays(addbmm), "neither broadcasts nor adds integers"
    ),
    Lowering(torch.matmul, matmul, _JOINS_HEADS),
    Lowering(torch.Tensor.matmul, matmul, _JOINS_HEADS),
    Lowering(torch.Tensor.__matmul__, matmul, _JOINS_HEADS),
    Lowering(
        _aten.complex.default, on_arrays(make_complex), "promotes what torch refuses"
    ),
    *(
        Lowering(target, float_power, "rounds an exponent before it asks if it is odd")
        for target in (torch.float_power, torch.Tensor.float_power)
    ),
    Lowering(torch.angle, on_arrays(angle), "forgets the dtype"),
    Lowering(_aten.angle.default, on_arrays(angle), "has no lowering"),
    Lowering(torch.isclose, on_arrays(isclose), "takes negative tolerances"),
    Lowering(torch.allclose, on_arrays(allclose), _TENSOR_FOR_BOOL),
    Lowering(torch.Tensor.allclose, on_arrays(allclose), _TENSOR_FOR_BOOL),
    Lowering(_aten.allclose.default, on_arrays(allclose), _TENSOR_FOR_BOOL),
)
METHODS = ()
