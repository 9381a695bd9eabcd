"""Quotients and divisors of integers, which torchax computes otherwise than torch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from tpuport.compat import index_checks
from tpuport.compat.convert import is_ported, wrap
from tpuport.compat.declarations import Call, Lowering, on_arrays
from tpuport.compat.operators.index_bounds import may_hold
from tpuport.compat.operators.promotion import Operand, compute, result_dtype
from tpuport.internals import torch_internals

_aten = torch.ops.aten
_DIVISIONS = {_aten.floor_divide, _aten.div, _aten.remainder, _aten.fmod}


def divides(function: Any) -> bool:
    """Whether an operator divides integers by integers."""
    return getattr(function, "overloadpacket", None) in _DIVISIONS


def check(call: Call) -> None:
    """Raise torch's error, if integers are to be divided by zero: where the divisor is
    known, or else in a program that checks its indices (`index_checks`).
    """
    is_exact = call.function.overloadpacket is _aten.div
    if len(call.args) < 2 or (is_exact and call.kwargs.get("rounding_mode") is None):
        return
    dividend, divisor = call.args[:2]
    if not (_is_integer(dividend) and _is_integer(divisor)) or _is_empty(dividend):
        return
    if not may_hold(divisor, 0):
        return
    array = divisor.jax() if is_ported(divisor) else np.asarray(divisor)
    if isinstance(array, Tracer):
        index_checks.require(array, array == 0, RuntimeError, "ZeroDivisionError")
    elif not np.asarray(array).all():
        raise RuntimeError("ZeroDivisionError")


def _is_integer(operand: Any) -> bool:
    if isinstance(operand, torch.Tensor):
        return not (operand.is_floating_point() or operand.is_complex())
    return isinstance(operand, int)


def _is_empty(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor) and operand.numel() == 0


def divide(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> jax.Array:
    """Traced. `x / y`, rounded; of integers to the last digit."""
    from torchax.ops.ops_registry import all_aten_ops

    dtype = result_dtype(x, y)
    if rounding_mode == "trunc" and jnp.issubdtype(dtype, jnp.integer):
        return compute(_truncated, dtype, x, y)
    lowering: Any = all_aten_ops[_aten.div].func
    return lowering(x, y, rounding_mode)


def _truncated(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.lax.div(*jnp.broadcast_arrays(x, y))


def gcd(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`torch.gcd(x, y)`, also of the least integer, for which jax does not end."""
    dtype = torch.result_type(x, y)
    divisor = on_arrays(_divisor_of_any_sign)(x, y)
    return _aten.abs.default(wrap(divisor.jax(), dtype))


def _divisor_of_any_sign(x: jax.Array, y: jax.Array) -> jax.Array:
    """Traced. Euclid's algorithm."""
    dtype = result_dtype(x, y)
    x, y = jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(y, dtype))

    def step(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, y = pair
        remainder = jax.lax.rem(x, jnp.where(y == 0, 1, y))
        return jnp.where(y == 0, x, y), jnp.where(y == 0, 0, remainder)

    return jax.lax.while_loop(lambda pair: jnp.any(pair[1] != 0), step, (x, y))[0]


def lcm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`torch.lcm(x, y)`, in steps that tell of what 32 bits do not hold."""
    divisor = gcd(x, y)
    parts = torch.div(x, divisor.clamp_min(1), rounding_mode="trunc")
    return (parts * y).abs()


def unravel_index(indices: torch.Tensor, shape: Any) -> tuple[torch.Tensor, ...]:
    """`torch.unravel_index(indices, shape)` in torch's own steps, which start again for
    a place beyond the end.
    """
    coordinates = torch_internals.unravel_index(indices, shape)
    return coordinates.unbind(-1)


LOWERINGS = (
    Lowering(
        _aten.div.Tensor_mode, on_arrays(divide), "divides integers with 24 bits only"
    ),
    Lowering(
        _aten.div.Scalar_mode, on_arrays(divide), "divides integers with 24 bits only"
    ),
    Lowering(_aten.gcd.default, gcd, "does not end for -2**31"),
    Lowering(_aten.lcm.default, lcm, "does not end for -2**31, and wraps around"),
    Lowering(torch.unravel_index, unravel_index, "stops at the last place"),
)
# `dispatching` calls `check` before an operator runs.
METHODS = ()
