"""Operators without a lowering of their own, which have one through their ordinary
form, or through torch.

An in-place form writes what the ordinary form gives. Others are decomposed as torch
itself decomposes them, or are functions of Python that someone has made operators.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.convert import as_jax, assign, jax_dtype
from tpuport.compat.operators.backward_operators import derived
from tpuport.compat.operators.in_place import can_cast, in_place
from tpuport.internals.torch_internals import (
    DECOMPOSITIONS,
    OpOverload,
    OpOverloadPacket,
    body_of_custom_operator,
    can_decompose,
    decompositions,
    schema_of,
    torch_pytree,
)
from tpuport.internals.torchax_internals import entry_of, operators


def find_operator(environment: Any, function: Any) -> Any:
    """What an environment runs for a function or an operator: its own entry, or a
    fallback.

    Raises:
        OperatorNotFound: of torchax; there is neither.
    """
    operator = operators(environment).get(function)
    if operator is not None and operator.is_user_defined:  # nearly always
        return operator
    if isinstance(function, OpOverloadPacket):
        # torch finds the overload, whose lowering may not be torchax's; torchax would
        # take its own entry for all of them.
        raise not_found(f"{function} is called by its overload")
    operator = operator or entry_of(environment, function)
    if isinstance(function, OpOverload):
        operator = _corrected(operator, function) if operator else _fallback(function)
    if operator is None:
        name = function.name() if isinstance(function, OpOverload) else function
        raise not_found(f"Operator with name {name} has no lowering")
    return operator


def _corrected(operator: Any, function: OpOverload) -> Any:
    """torchax's entry for an operator, or what gives torch's results."""
    if operator.is_user_defined:
        return operator
    if _is_composed_view(function):
        # Of the views that `aliasing` links; torchax's own gives a copy.
        return _operator(function, function.decompose)
    # torchax's own in-place forms neither cast nor know tensors without dimensions.
    if schema_of(function).is_mutable:
        return _fallback(function) or operator
    name = schema_of(function).name.removeprefix("aten::")
    if name.startswith("special_") or name in _WITHOUT_BOOLS:
        return _in_float32(operator, {"bool"})
    if name in _WITHOUT_HALVES:
        return _in_float32(operator, {"bfloat16", "float16"})
    return operator


def not_found(message: str) -> Exception:
    """torchax's error for what it has no lowering for."""
    from torchax.tensor import OperatorNotFound

    return OperatorNotFound(message)


_WITHOUT_BOOLS = {"erf", "erfc", "erfinv"}
# These overflow or lose digits on the way.
_WITHOUT_HALVES = {
    "dist",
    "grid_sampler_3d",
    "linalg_vector_norm",
    "norm",
}


def _in_float32(operator: Any, dtypes: set[str]) -> Any:
    """The operator with arrays of these dtypes as float32; the result is cast to
    torch's dtype by `expectations`.
    """

    def widened(argument: Any) -> Any:
        is_array = isinstance(argument, (jax.Array, torch.Tensor))
        if not is_array or str(argument.dtype).removeprefix("torch.") not in dtypes:
            return argument
        return (
            argument.float()
            if isinstance(argument, torch.Tensor)
            else argument.astype(jnp.float32)
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        return operator.func(*torch_pytree.tree_map(widened, args), **kwargs)

    return dataclasses.replace(operator, func=call)


@functools.cache
def _fallback(function: OpOverload) -> Any:
    ordinary = _ordinary_form(function)
    if ordinary is not None:
        return _operator(function, in_place(ordinary))
    if (without_out := _form_without_out(function)) is not None:
        return _operator(function, _write_out(without_out, _names_of_out(function)))
    if not DECOMPOSITIONS.works():
        return None
    if function in decompositions() and not schema_of(function).is_mutable:
        return _operator(function, decompositions()[function])
    # Autograd decomposes these before they are asked for, except in
    # `torch.inference_mode`. Views of a view would need what autograd notes about them.
    is_view = any(
        result.alias_info is not None for result in schema_of(function).returns
    )
    if can_decompose(function) and not is_view:
        return _operator(function, function.decompose)
    body = body_of_custom_operator(schema_of(function).name) or derived(function)
    return None if body is None else _operator(function, body)


@functools.cache
def _is_composed_view(function: OpOverload) -> bool:
    aliases = [
        result.alias_info
        for result in schema_of(function).returns
        if result.alias_info is not None
    ]
    is_view = bool(aliases) and not any(alias.is_write for alias in aliases)
    return is_view and DECOMPOSITIONS.works() and can_decompose(function)


def _form_without_out(function: OpOverload) -> Any:
    """The overload that returns what `aten.f.out` writes into its arguments for
    results; None if there is none.
    """
    names = _names_of_out(function)
    if not names:
        return None
    packet = function.overloadpacket
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    types = [pair for pair in _argument_types(function) if pair[0] not in names]
    return next(
        (overload for overload in overloads if _argument_types(overload) == types), None
    )


def _names_of_out(function: OpOverload) -> list[str]:
    """The arguments that results are written to: `out`, or one for each."""
    return [
        argument.name for argument in schema_of(function).arguments if argument.is_out
    ]


def _write_out(function: OpOverload, names: list[str]) -> Any:
    """The overload that writes the results of another into arguments of these names."""

    def write(*args: Any, **kwargs: Any) -> Any:
        destinations = [kwargs.pop(name) for name in names]
        results = function(*args, **kwargs)
        if len(names) == 1:
            return _written(destinations[0], results, function)
        return tuple(
            _written(out, result, function)
            for out, result in zip(destinations, results, strict=True)
        )

    return write


def _written(out: torch.Tensor, result: torch.Tensor, function: Any) -> torch.Tensor:
    if not can_cast(result.dtype, out.dtype):
        raise RuntimeError(
            f"result type {result.dtype} can't be cast to the desired output type {out.dtype} (out= of {function})"
        )
    return assign(out, as_jax(result).astype(jax_dtype(out.dtype)))


def _ordinary_form(function: OpOverload) -> Any:
    """`aten.f.overload` for `aten.f_.overload`; None if there is none, or f_ changes
    more than values.
    """
    name = schema_of(function).name.removeprefix("aten::")
    if not name.endswith("_") or name.startswith("__") or name in _CHANGES_SHAPE:
        return None
    if torch.Tag.nondeterministic_seeded in function.tags:
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    overloads = (
        [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    )
    types = _argument_types(function)
    return next(
        (overload for overload in overloads if _argument_types(overload) == types), None
    )


def _argument_types(function: OpOverload) -> list[tuple[str, str]]:
    return [
        (argument.name, str(argument.type))
        for argument in schema_of(function).arguments
    ]


_CHANGES_SHAPE = {
    "as_strided_",
    "resize_",
    "resize_as_",
    "set_",
    "squeeze_",
    "swapaxes_",
    "swapdims_",
    "t_",
}


def _operator(target: Any, function: Callable[..., Any]) -> Any:
    from torchax.ops.ops_registry import Operator

    return Operator(
        target,
        function,
        is_jax_function=False,
        is_user_defined=True,
        needs_env=False,
        is_view_op=False,
    )


LOWERINGS = ()
# `lowered_calls` asks `find_operator`.
METHODS = ()
