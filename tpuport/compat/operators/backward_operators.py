"""The operators of backward passes that neither torchax nor torch's decompositions
have: jax derives them from the lowering of the forward operator.

`aten.avg_pool2d_backward(grad_output, self, kernel_size, ...)` takes the arguments of
`aten.avg_pool2d` by their names, so that one rule serves all of them. What a forward
operator takes and its backward does not follows from the sizes that it has instead.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.convert import as_jax, wrap
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.internals.torch_internals import OpOverload, decompositions, schema_of

_SUFFIX = "_backward"
# What torch takes an operand's sizes by where its values do not matter.
_SIZES = {"self": "input_size", "input": "input_size", "bias": "bias_sizes"}


def derived(function: OpOverload) -> Callable[..., Any] | None:
    """A lowering of a backward operator; None if there is no forward operator whose
    arguments it has.
    """
    name = schema_of(function).name.removeprefix("aten::")
    forward = _forward_of(name)
    if forward is None or not _has_operands(function, forward):
        return None
    return functools.partial(_run, function, forward)


def _has_operands(function: OpOverload, forward: OpOverload) -> bool:
    """Whether a backward operator has all that its forward operator needs."""
    names = {argument.name for argument in schema_of(function).arguments}
    return "out" not in names and all(
        argument.has_default_value()
        or argument.name in names
        or argument.name == "output_size"
        or _SIZES.get(argument.name) in names
        or str(argument.type).startswith("Optional")
        for argument in schema_of(forward).arguments
    )


def _forward_of(name: str) -> Any:
    if not name.endswith(_SUFFIX):
        return None
    base = name.removesuffix(_SUFFIX)
    for candidate in (base, f"{base}_forward"):
        packet = getattr(torch.ops.aten, candidate, None)
        if packet is not None and "default" in packet.overloads():
            return packet.default
    return None


def _run(function: OpOverload, forward: OpOverload, *args: Any, **kwargs: Any) -> Any:
    names = [argument.name for argument in schema_of(function).arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    gradient = as_jax(args[0])
    operands = {
        argument.name: _operand(argument.name, given, gradient)
        for argument in schema_of(forward).arguments
        if argument.name in given or not argument.has_default_value()
    }
    # In the order in which the backward operator returns their gradients.
    differentiable = [
        name
        for name, value in operands.items()
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.inexact)
    ]

    def compute(*arrays: jax.Array) -> jax.Array:
        tensors = {
            name: wrap(value) if isinstance(value, jax.Array) else value
            for name, value in (
                operands | dict(zip(differentiable, arrays, strict=True))
            ).items()
        }
        return as_jax(forward(*tensors.values()))

    # jax differentiates the program of the lowering, so that no code of torch meets
    # values that are being differentiated.
    _, pull = jax.vjp(
        jax.jit(compute, inline=True), *(operands[name] for name in differentiable)
    )
    gradients = dict(zip(differentiable, map(wrap, pull(gradient)), strict=True))
    results = len(schema_of(function).returns)
    if results == 1:
        return gradients[differentiable[0]]
    mask = given.get("output_mask", itertools.repeat(True))
    wanted = [
        name for name in operands if name in differentiable or operands[name] is None
    ]
    return tuple(
        gradients.get(name) if is_wanted else None
        for name, is_wanted in zip(wanted[:results], mask, strict=False)
    )


def _operand(name: str, given: dict[str, Any], gradient: jax.Array) -> Any:
    """An argument of the forward operator, tensors as arrays."""
    if name in given:
        return as_jax(given[name])
    if name == "output_size":
        return list(gradient.shape[2:])
    sizes = given.get(_SIZES.get(name, ""))
    # torch gives [0] for an operand that there is not.
    return jnp.zeros(sizes, gradient.dtype) if sizes and any(sizes) else None


def _masked_scatter_backward(
    gradient: jax.Array, mask: jax.Array, sizes: Any
) -> jax.Array:
    """The gradient of the values that a mask has scattered, in order."""
    count = math.prod(sizes)
    mask = jnp.broadcast_to(mask, gradient.shape).ravel()
    places = jnp.where(mask, jnp.cumsum(mask) - 1, count)
    values = jnp.zeros(count, gradient.dtype)
    return values.at[places].set(gradient.ravel(), mode="drop").reshape(tuple(sizes))


def _layer_norm_backward(*args: Any) -> Any:
    return decompositions()[_aten.native_layer_norm_backward.default](*args)


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(
        _aten.masked_scatter_backward.default,
        on_arrays(_masked_scatter_backward),
        "has no lowering, and torch's own asks how many values there are",
    ),
    Lowering(
        _aten.native_layer_norm_backward.default,
        _layer_norm_backward,
        "calls a function that jax does not have",
    ),
)
# `fallbacks` asks for what is derived.
METHODS = ()
