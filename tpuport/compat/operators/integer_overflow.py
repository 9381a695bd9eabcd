"""Integers of 64 bits that 32 do not hold: an error, where torch would go on counting.

The device counts in 32 bits, and wraps around beyond them. A sum or a product is
therefore computed in float32 too, which is far from the wrapped result and near to any
other: a wrap moves an integer by 2**32, and float32 is exact to 24 bits.

Outside of traced code the error comes at once. A compiled program tells of it if it
checks its indices (`index_checks`).
"""

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
import torch.overrides
from jax.core import Tracer

from tpuport.base.mappings import only, without
from tpuport.compat import index_checks
from tpuport.compat.convert import is_ported, wrap
from tpuport.compat.operators import index_bounds
from tpuport.compat.user_frames import user_line
from tpuport.errors import PortError
from tpuport.internals.jax_internals import is_any_trace_under_way
from tpuport.internals.torch_internals import schema_of, torch_pytree

# Half of what a wrap moves an integer by.
_FAR: Final = 2.0**31
# Operators that lead beyond 32 bits. Those that write in place run one of these.
_COUNTING: Final = frozenset({
    "add", "sub", "rsub", "mul", "square", "pow", "sum", "prod", "cumsum", "cumprod", "mm", "bmm", "mv", "dot", "addmm",
    "addmv", "baddbmm", "addbmm", "addr", "addcmul", "trace", "index_add", "scatter_add", "bitwise_left_shift",
    "__lshift__", "nansum", "scatter_reduce", "scatter", "index_put", "put", "convolution", "neg", "abs",
    "index_reduce", "_trilinear", "floor_divide", "div", "avg_pool2d", "avg_pool3d",
})  # fmt: skip
# Computed as a whole, of whatever dtype.
_FUNCTIONS: Final = frozenset({
    torch.einsum, torch.nn.functional.linear, torch.linalg.matrix_power,
})  # fmt: skip


def run_checked(
    run: Callable[..., Any], function: Any, args: tuple, kwargs: dict[str, Any]
) -> Any:
    """The result of an operator, or of a function that torchax computes as a whole.

    Args:
        run: runs either with arguments.
        function: one whose result is of int64, if it is an operator that does not write
            in place.

    Raises:
        PortError: the result has wrapped around. A program that checks its indices
            raises a RuntimeError after the call.
    """
    if not _counts(function):  # nearly always
        return run(function, args=args, kwargs=kwargs)
    total = _call_of_total(function, args, kwargs)
    if total:
        # Divided by a count, one that has wrapped around is not far any more.
        run_checked(run, function, *total)
    estimated = _estimate(run, function, args, kwargs)
    output = run(function, args=args, kwargs=kwargs)
    if estimated is not None and output.dtype is torch.int64:
        _check(function, estimated, output.jax())
    return output


def _estimate(
    run: Callable[..., Any], function: Any, args: tuple, kwargs: dict[str, Any]
) -> jax.Array | None:
    """The result of what is about to run, in float32; None unless it counts in 64 bits
    what may be beyond 32, and somebody can be told.
    """
    leaves, structure = torch_pytree.tree_flatten((args, kwargs))
    if not _are_integers(leaves):
        return None
    # What torch makes of an operator is known already.
    if function in _FUNCTIONS and not any(map(_is_wide, leaves)):
        return None
    formula = _FORMULAS.get(function.__name__.split(".")[0])
    if formula:
        return formula(*args)
    positions = _positions(function, args, kwargs)
    floats = [leaf if id(leaf) in positions else _in_float32(leaf) for leaf in leaves]
    args, kwargs = torch_pytree.tree_unflatten(floats, structure)
    return run(function, args=args, kwargs=without(kwargs, {"dtype"})).jax()


def _counts(function: Any) -> bool:
    if function in _FUNCTIONS:
        return True
    return getattr(_packet(function), "__name__", "") in _COUNTING


def _packet(function: Any) -> Any:
    return getattr(function, "overloadpacket", None)


def _call_of_total(
    function: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]] | None:
    """The arguments with which an operator that averages gives what it divides; None of
    all else.
    """
    packet = _packet(function)
    if packet in _REDUCTIONS and args[4:5] == ("mean",):
        return (*args[:4], "sum"), kwargs
    if packet in _AVERAGES and kwargs.get("divisor_override") != 1:
        return args[:6], kwargs | {"divisor_override": 1}
    return None


def _are_integers(leaves: list[Any]) -> bool:
    """Whether the tensors are of integers, and what comes of them can be looked at."""
    arrays = [leaf.jax() for leaf in leaves if is_ported(leaf)]
    if not arrays or jax.config.read("jax_enable_x64"):
        return False
    is_told = index_checks.is_checking() or (
        not is_any_trace_under_way() and all(map(_has_values, arrays))
    )
    return is_told and all(array.dtype.kind in "biu" for array in arrays)


def _is_wide(leaf: Any) -> bool:
    return is_ported(leaf) and leaf.dtype is torch.int64


def _positions(function: Any, args: tuple, kwargs: dict[str, Any]) -> set[int]:
    """The identities of tensors that are indices, and stay what they are."""
    if function in _FUNCTIONS:
        return set()
    names = [argument.name for argument in schema_of(function).arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    return set(map(id, torch_pytree.tree_leaves(only(arguments, {"index", "indices"}))))


def _has_values(array: Any) -> bool:
    return not isinstance(array, Tracer) and array.is_fully_addressable


def _as_float(value: Any) -> Any:
    return value.jax().astype(jnp.float32) if is_ported(value) else float(value)


def _in_float32(leaf: Any) -> Any:
    if is_ported(leaf):
        return wrap(_as_float(leaf))
    # A factor of integers is an integer in torch.
    return int(leaf) if isinstance(leaf, float) else leaf


def _shifted(number: Any, places: Any) -> jax.Array:
    number, places = _as_float(number), _as_float(places)
    # Nothing is left of 64 bits that are moved by as many.
    return jnp.where(places < 64, number * jnp.exp2(places), 0)


def _power(base: Any, exponent: Any) -> jax.Array:
    # An integer to a power below zero is -1, 0 or 1, also for 0.
    return jnp.power(_as_float(base), jnp.maximum(_as_float(exponent), 0))


def _quotient(dividend: Any, divisor: Any) -> jax.Array | None:
    # The one quotient beyond 32 bits is that of -2**31 and -1.
    if not index_bounds.may_hold(divisor, -1):
        return None
    return _as_float(dividend) / _as_float(divisor)


# What float32 has no operator for, or another result.
_FORMULAS: Final = {
    "bitwise_left_shift": _shifted, "__lshift__": _shifted, "pow": _power, "floor_divide": _quotient, "div": _quotient,
}  # fmt: skip
_REDUCTIONS: Final = {torch.ops.aten.scatter_reduce, torch.ops.aten.index_reduce}
_AVERAGES: Final = {torch.ops.aten.avg_pool2d, torch.ops.aten.avg_pool3d}


def _is_wrapped(estimated: jax.Array, result: jax.Array) -> jax.Array:
    return jnp.abs(estimated - result.astype(jnp.float32)) > _FAR


@jax.jit  # one program instead of five
def _has_wrapped(estimated: jax.Array, result: jax.Array) -> jax.Array:
    return jnp.any(_is_wrapped(estimated, result))


def _check(function: Any, estimated: jax.Array, result: jax.Array) -> None:
    name = torch.overrides.resolve_name(function) or function
    what = f"{name} gives integers beyond 2**31, and the device counts in 32 bits"
    if isinstance(estimated, Tracer):
        is_wrapped = _is_wrapped(estimated, result)
        index_checks.require(result, is_wrapped, RuntimeError, what)
    elif _has_wrapped(estimated, result):
        raise PortError(
            what,
            where=user_line(),
            fix="compute it on the host (x.cpu()), or in float32; jax_enable_x64 gives a CPU 64 bits",
        )


LOWERINGS = ()
# `expectations` runs operators through `run_checked`.
METHODS = ()
