"""The lowering of an operator, found and run; an error of jax, which names no operator,
is explained.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import torch
import torch.overrides

from tpuport.compat import deferral
from tpuport.compat.convert import device_class
from tpuport.compat.declarations import Call
from tpuport.compat.operators.fallbacks import find_operator, not_found
from tpuport.compat.replacements import original
from tpuport.errors import MissingDtypeError, PortError
from tpuport.internals.torch_internals import OpOverload, torch_pytree
from tpuport.internals.torchax_internals import (
    DISPATCH,
    composing,
    is_autocast,
    is_debugged,
    is_lazy_view,
)

LOWERINGS = ()
# `dispatching` calls `run`.
METHODS = ()

# Of what moves a tensor, or makes one of nothing: torchax's own dispatch decides.
_OF_TORCHAX = {
    torch.Tensor.to, torch.ops.aten.lift_fresh.default, torch.ops.aten._to_copy.default,
    torch.ones, torch.zeros, torch.empty, torch.empty_strided, torch.tensor, torch.arange, torch.eye, torch.randn,
    torch.rand, torch.randint, torch.full, torch.as_tensor, torch.linspace, torch.logspace,
}  # fmt: skip


def is_of_torchax(function: Any) -> bool:
    """Whether a function moves a tensor or makes one of nothing, as torchax decides."""
    return function in _OF_TORCHAX


def has_lowering(environment: Any, function: Any) -> bool:
    """Whether there is a lowering of a function or an operator, or a fallback."""
    try:
        find_operator(environment, function)
    except type(not_found("")):
        return False
    return True


def run(call: Call) -> Any:
    """What the lowering of an operator or function gives.

    Raises:
        OperatorNotFound: of torchax; there is none.
        PortError: it cannot run with these arguments.
    """
    try:
        return _run(call)
    except Exception as error:
        explained = _explained(call, error)
        if explained is None:
            raise
        raise explained from error


def _run(call: Call) -> Any:
    environment, function, args = call.environment, call.function, call.args
    tensors = list(_tensors_in(args))
    cls: Any = device_class()
    others = [tensor for tensor in tensors if not isinstance(tensor, cls)]
    if (
        not DISPATCH.works()
        or function in _OF_TORCHAX
        or is_autocast(environment)
        or is_debugged(environment)
        or any(map(is_lazy_view, others))
    ):
        dispatch: Callable[..., Any] = original("Environment", "dispatch")
        return dispatch(environment, function, (), args, call.kwargs)
    if others and len(others) == len(tensors):
        return function(*args, **call.kwargs)
    # The names are in profiles.
    with jax.named_scope(_scope_of(function)):
        operator = find_operator(environment, function)
        kwargs = call.kwargs
        if operator.needs_env:
            kwargs = kwargs | {"env": environment}
        if not operator.is_jax_function:
            with composing(environment):
                return operator.func(*args, **kwargs)
        args, kwargs = _arrays_of(environment, args, kwargs)
        result = operator.func(*args, **kwargs)
        if isinstance(result, jax.Array):
            return cls(result, environment)
        return environment.j2t_iso(result)


@functools.lru_cache(4096)
def _scope_of(function: Any) -> str:
    return function.name() if hasattr(function, "name") else function.__name__


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    # Not by torch's trees: this looks at the arguments of every operator.
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors_in(value)


class _NoArray(Exception):
    """What has tensors inside and is neither a tuple nor a list, or is on the host."""


def _arrays_of(
    environment: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """The arguments with arrays for tensors."""
    cls = device_class()
    try:
        return (
            tuple([_array_of(value, cls) for value in args]),
            {name: _array_of(value, cls) for name, value in kwargs.items()},
        )
    except _NoArray:
        args, kwargs = torch_pytree.tree_map(deferral.array_of_float, (args, kwargs))
        return environment.t2j_iso((args, kwargs))


def _array_of(value: Any, cls: Any) -> Any:
    if isinstance(value, cls):
        return value.jax()
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_array_of(part, cls) for part in value])
    if kind is torch.SymFloat:
        return deferral.array_of_float(value)
    if isinstance(value, torch.Tensor | dict | tuple) and kind is not torch.Size:
        raise _NoArray
    return value


def _explained(call: Call, error: Exception) -> Exception | None:
    """An error that names the operator; None if an error says enough."""
    function = call.function
    if str(error).startswith("Attempting to convert unknown type"):
        return MissingDtypeError(
            f"{name_of(function)} is to give a dtype that the device does not have: {error}",
            where=described(call.args, call.kwargs),
            fix="ask for another dtype: complex64 in place of complex32, x.float() before",
        )
    if isinstance(error, OverflowError):
        return PortError(
            f"{name_of(function)} cannot run on the device: integers have 32 bits there: {error}",
            where=described(call.args, call.kwargs),
            fix="compute it in float32 or on the host",
        )
    if (
        isinstance(error, _PASSED)
        or _SIZE_OF_A_TENSOR.search(str(error))
        or _explains_itself(call)
    ):
        return None
    return PortError(
        f"{name_of(function)} cannot run on the device with these arguments: {error}",
        where=described(call.args, call.kwargs),
        fix="write it with other operators, or compute it on the host",
    )


def _explains_itself(call: Call) -> bool:
    """Whether an operator's lowering is ours, or missing: both errors say enough."""
    environment, function = call.environment, call.function
    return (
        not has_lowering(environment, function)
        or find_operator(environment, function).is_user_defined
    )


def name_of(function: Any) -> str:
    """What a message calls a function or an operator of torch."""
    if isinstance(function, OpOverload):
        return str(function)
    return torch.overrides.resolve_name(function) or str(function)


def described(*arguments: Any) -> str:
    """What a message says of arguments."""
    return ", ".join(map(_described, torch_pytree.tree_leaves(arguments)))


def _described(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{leaf.dtype} {list(leaf.shape)}".removeprefix("torch.")
    return str(leaf)[:60]


# What explains itself, and what the explanation of failed traces recognizes.
_PASSED = (
    PortError,
    RuntimeError,
    Warning,
    jax.errors.JAXTypeError,
    jax.errors.JAXIndexError,
    MemoryError,
)
# Of a size that is a tensor, for which jax has no class of errors.
_SIZE_OF_A_TENSOR = re.compile(r"concrete values of integer type, got .*Tracer")
