"""The arguments of a compiled function, divided into those of its program: tensors, donated caches, static values."""

from collections.abc import Hashable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import torch
from jax.core import Tracer

from tpuport import compat, pytrees
from tpuport.compat import randomness
from tpuport.compilation.compiled_program import ShapeText
from tpuport.errors import PortError
from tpuport.library_classes import is_transformers_cache
from tpuport.patches import registry
from tpuport.static_values import StaticValue


class Argument(NamedTuple):
    """One leaf of the arguments, as far as a program is made for it.

    Attributes:
        name: its path from the function's parameter: "inputs.ids".
        kind: which of the program's arguments has it; a static value is in the program itself.
        content: the structure of a cache, the number of a random generator, or the static value; None for a tensor.
    """

    name: str
    kind: Literal["tensor", "cache", "generator", "static"]
    content: Hashable


class Layout(NamedTuple):
    """How to put the arguments of a call together again. Hashable: it is a static argument of the program.

    Attributes:
        tree: the structure of (positional arguments by name, keyword arguments).
        arguments: its leaves.
    """

    tree: Hashable
    arguments: tuple[Argument, ...]

    def join(self, tensors: list[Any], donated: list[list[Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The positional arguments by name, and the keyword arguments.

        Args:
            tensors: the values of the tensors, in order.
            donated: for each cache the tensors in it.
        """
        remaining_tensors, remaining_caches = iter(tensors), iter(donated)
        leaves: list[Any] = []
        for argument in self.arguments:
            content: Any = argument.content
            match argument.kind:
                case "tensor":
                    leaves.append(next(remaining_tensors))
                case "cache":
                    leaves.append(jax.tree_util.tree_unflatten(content, next(remaining_caches)))
                case "generator":
                    leaves.append(randomness.call_generator(content))
                case "static":
                    leaves.append(content.value)
        tree: Any = self.tree
        return jax.tree_util.tree_unflatten(tree, leaves)

    def describe(self, tensors: list[Any], donated: list[list[Any]]) -> dict[str, str]:
        """What a program is compiled for, by argument: shapes of tensors, values of the rest."""
        remaining_tensors, remaining_caches = iter(tensors), iter(donated)
        descriptions: dict[str, str] = {}
        for argument in self.arguments:
            match argument.kind:
                case "tensor":
                    tensor = next(remaining_tensors)
                    text: str = ShapeText(f"{tensor.dtype}{tuple(tensor.shape)}")
                case "cache":
                    text = ShapeText([tuple(tensor.shape) for tensor in next(remaining_caches)])
                case "generator":
                    text = "torch.Generator"
                case "static":
                    text = repr(argument.content)
            descriptions[argument.name] = text
        return descriptions


class DividedArguments(NamedTuple):
    """The arguments of one call: tensors on the device, the tensors of each cache, generators, the layout of all.

    `originals` are the tensors as the caller gave them.
    """

    tensors: list[Any]
    originals: list[Any]
    donated: list[list[Any]]
    generators: list[torch.Generator]
    layout: Layout


def prepare_arguments(function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments after the decisions that a model's patches take outside of the trace.

    Args:
        function: a module or its bound `forward`; the arguments of any other function stay as they are.
    """
    is_forward = getattr(function, "__name__", "") == "forward"
    owner = getattr(function, "__self__", None) if is_forward else function
    if not isinstance(owner, torch.nn.Module):
        return args, kwargs
    return registry.prepared(owner, args, kwargs)


def divide_arguments(positional: dict[str, Any], keywords: dict[str, Any]) -> DividedArguments:
    """Divide the arguments of a call.

    Args:
        positional: by the names of the function's parameters.
        keywords: by name.

    Raises:
        PortError: an argument is neither a tensor nor hashable, or was donated to an earlier call.
    """
    pytrees.register_used(positional, keywords)
    leaves, tree = jax.tree_util.tree_flatten_with_path((positional, keywords), is_leaf=is_transformers_cache)
    tensors: list[Any] = []
    originals: list[Any] = []
    donated: list[list[Any]] = []
    generators: list[torch.Generator] = []
    arguments: list[Argument] = []
    for path, leaf in leaves:
        # The path begins with 0 or 1: positional, or by keyword.
        name = jax.tree_util.keystr(path[1:], simple=True, separator=".")
        if is_transformers_cache(leaf):
            claim_cache(leaf)
            cache_tensors, structure = jax.tree_util.tree_flatten(leaf)
            donated.append([_usable_array(tensor, name) for tensor in cache_tensors])
            arguments.append(Argument(name, "cache", structure))
        elif _is_array(leaf):
            tensors.append(_usable_array(leaf, name))
            originals.append(leaf)
            arguments.append(Argument(name, "tensor", None))
        elif isinstance(leaf, torch.Generator):
            # Its state is an argument of the program, so that a new one for each call is nothing new.
            if leaf not in generators:
                generators.append(leaf)
            arguments.append(Argument(name, "generator", generators.index(leaf)))
        else:
            arguments.append(Argument(name, "static", _static_value(leaf, name)))
    return DividedArguments(tensors, originals, donated, generators, Layout(tree, tuple(arguments)))


def shapes_key(arrays: Iterable[Any]) -> Hashable:
    """A key of the shapes and dtypes of arrays."""
    return tuple((array.shape, array.dtype) for array in arrays if hasattr(array, "dtype"))


def claim_cache(cache: Any) -> None:
    """Let a cache that was allocated on the host make its positions on the device, where its tensors will be."""
    for layer in getattr(cache, "layers", ()):
        if getattr(layer, "device", None) is not None:
            layer.device = torch.device("jax")


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | jax.Array) or hasattr(value, "__array__")


def _usable_array(value: Any, name: str) -> Any:
    """The value as an array on the device.

    Raises:
        PortError: it has been donated. On several devices jax would kill the process.
    """
    array = value
    if isinstance(value, torch.Tensor):
        array = compat.to_jax(value)
    is_concrete = isinstance(array, jax.Array) and not isinstance(array, Tracer)
    if is_concrete and array.is_deleted():
        raise PortError(
            "this cache, or a tensor of it, was donated to an earlier call, whose output has its memory now",
            where=name,
            fix="go on with the cache in that call's output, `token, cache = step(token, cache)`",
        )
    return array


def _static_value(value: Any, name: str) -> StaticValue:
    try:
        hash(value)
    except TypeError as error:
        raise PortError(
            "an argument of a compiled function is neither a tensor nor hashable",
            where=f"{name}: {type(value).__name__} {value!r:.60}",
            fix="pass tensors, or Python values that can be dictionary keys",
        ) from error
    return StaticValue(value)
