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
from jax._src.core import trace_state_clean  # jax has no public function for this
from jax.core import Tracer
from torch.utils import _pytree as pytree

from tpuport.compat import index_checks
from tpuport.compat.convert import is_ported, wrap
from tpuport.compat.user_frames import user_line
from tpuport.errors import PortError
from tpuport.mappings import only, without

# Half of what a wrap moves an integer by.
_FAR: Final = 2.0**31
# Operators that lead beyond 32 bits, without those that write in place.
_COUNTING: Final = frozenset({
    "add", "sub", "rsub", "mul", "square", "pow", "sum", "prod", "cumsum", "cumprod", "mm", "bmm", "mv", "dot", "addmm",
    "addmv", "baddbmm", "addbmm", "addr", "addcmul", "trace", "index_add", "scatter_add", "bitwise_left_shift",
    "__lshift__", "nansum", "scatter_reduce", "scatter", "index_put", "put", "convolution", "neg", "abs",
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
    functional = _functional(function)
    if functional is None:  # nearly always
        return None
    leaves, structure = pytree.tree_flatten((args, kwargs))
    if not _are_integers(leaves):
        return None
    # What torch makes of an operator is known already.
    if function in _FUNCTIONS and not any(map(_is_wide, leaves)):
        return None
    formula = _FORMULAS.get(functional.__name__.split(".")[0])
    if formula:
        return formula(*map(_as_float, args))
    positions = _positions(function, args, kwargs)
    floats = [leaf if id(leaf) in positions else _in_float32(leaf) for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(floats, structure)
    return run(functional, args=args, kwargs=without(kwargs, {"dtype"})).jax()


def _functional(function: Any) -> Any:
    """What counts, and does not write into what it is computed of; None for all
    else.
    """
    if function in _FUNCTIONS:
        return function
    packet = getattr(function, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    if name not in _COUNTING:
        name = name.removesuffix("_")
    if name not in _COUNTING:
        return None
    return getattr(getattr(torch.ops.aten, name), function._overloadname)


def _are_integers(leaves: list[Any]) -> bool:
    """Whether the tensors are of integers, and what comes of them can be looked at."""
    arrays = [leaf.jax() for leaf in leaves if is_ported(leaf)]
    if not arrays or jax.config.read("jax_enable_x64"):
        return False
    is_told = index_checks.is_checking() or (
        trace_state_clean() and all(map(_has_values, arrays))
    )
    return is_told and all(array.dtype.kind in "biu" for array in arrays)


def _is_wide(leaf: Any) -> bool:
    return is_ported(leaf) and leaf.dtype is torch.int64


def _positions(function: Any, args: tuple, kwargs: dict[str, Any]) -> set[int]:
    """The identities of tensors that are indices, and stay what they are."""
    if function in _FUNCTIONS:
        return set()
    names = [argument.name for argument in function._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    return set(map(id, pytree.tree_leaves(only(arguments, {"index", "indices"}))))


def _has_values(array: Any) -> bool:
    return not isinstance(array, Tracer) and array.is_fully_addressable


def _as_float(value: Any) -> Any:
    return value.jax().astype(jnp.float32) if is_ported(value) else float(value)


def _in_float32(leaf: Any) -> Any:
    return wrap(_as_float(leaf)) if is_ported(leaf) else leaf


def _shifted(number: jax.Array, places: jax.Array) -> jax.Array:
    # Nothing is left of 64 bits that are moved by as many.
    return jnp.where(places < 64, number * jnp.exp2(places), 0)


def _power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    # An integer to a power below zero is -1, 0 or 1, also for 0.
    return jnp.power(base, jnp.maximum(exponent, 0))


# What float32 has no operator for, or another result.
_FORMULAS: Final = {
    "bitwise_left_shift": _shifted, "__lshift__": _shifted, "pow": _power,
}  # fmt: skip


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
