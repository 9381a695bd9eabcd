"""The arguments of a compiled function, divided into those of its program: tensors,
donated caches, static values.
"""

import fnmatch
import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.compilation.arguments.cache_arguments import claim_cache, refuse_retired
from tpuport.compilation.arguments.call_layout import (
    Argument,
    Layout,
    fits,
    is_inside,
    tensor_leaves,
)
from tpuport.compilation.arguments.call_numbers import (
    Numbers,
    counters_as_numbers,
    counters_of,
    is_number,
)
from tpuport.compilation.model_weights import is_on_host
from tpuport.errors import PortError
from tpuport.libraries.library_classes import is_transformers_cache
from tpuport.objects import pytrees
from tpuport.objects.object_graph import (
    Flattener,
    Graph,
    is_array,
)
from tpuport.objects.state.host_input import HostInput
from tpuport.objects.state.python_state import Shared
from tpuport.objects.state.reachable import is_library
from tpuport.objects.static_values import StaticValue
from tpuport.objects.traced_numbers import Path, number_at
from tpuport.patches import registry

# Names in an error.
_NAMES_SHOWN = 12


class DividedArguments(NamedTuple):
    """The arguments of one call.

    Attributes:
        arrays: of the tensors, on the device; `donated` those of each cache.
        generators: each once.
        layout: of all of them, for the program.
        graph: the caller's own objects and tensors.
        numbers: that are arguments of the program, by path.
    """

    arrays: list[Any]
    donated: list[list[Any]]
    generators: list[torch.Generator]
    layout: Layout
    graph: Graph
    numbers: Numbers

    @property
    def tensor_leaves(self) -> list[int]:
        """Numbers of the leaves that are tensors of the program."""
        return tensor_leaves(self.layout.arguments)

    def plain_numbers(self) -> Numbers:
        """All numbers that may vary, by path: arguments, and counters of caches."""
        numbers: Numbers = {}
        for name, leaf, argument in zip(
            self.graph.names, self.graph.leaves, self.layout.arguments, strict=True
        ):
            if argument.kind == "cache":
                numbers |= {
                    path: owner[attribute]
                    for owner, attribute, path in counters_of(leaf, name)
                }
            elif argument.kind == "static" and is_number(leaf):
                numbers["argument", name] = leaf
        return numbers

    def named_tensors(self) -> dict[str, Any]:
        """The caller's tensors and arrays that are tensors of the program, by name."""
        named = [
            (self.graph.names[number], self.graph.leaves[number])
            for number in self.tensor_leaves
        ]
        return {name: leaf for name, leaf in named if hasattr(leaf, "dtype")}


def parameters_of(function: Callable) -> Mapping[str, Parameter]:
    """The parameters of a function, by name; `*args, **kwargs` for those of C, which
    tell none (`torch.sin`).
    """
    try:
        return signature(function).parameters
    except ValueError:
        return signature(lambda *args, **kwargs: None).parameters


def positional_names(parameters: Mapping[str, Parameter]) -> list[str]:
    """The names of those that may be given by position, in order."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in parameters.items() if parameter.kind in kinds]


def prepare_arguments(function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments after the decisions that a model's patches take outside of the
    trace.

    Args:
        function: a module or its bound `forward`; the arguments of any other function
            stay as they are.
    """
    owner = _module_called(function)
    return (args, kwargs) if owner is None else registry.prepared(owner, args, kwargs)


def is_prepared_by_patches(function: Any) -> bool:
    """Whether `prepare_arguments` may change arguments of a function."""
    owner = _module_called(function)
    return owner is not None and bool(registry.preparations_for(owner))


def _module_called(function: Any) -> torch.nn.Module | None:
    """The module whose forward a function is, or which is called itself."""
    is_forward = getattr(function, "__name__", "") == "forward"
    owner = getattr(function, "__self__", None) if is_forward else function
    return owner if isinstance(owner, torch.nn.Module) else None


def divide_arguments(
    positional: dict[str, Any],
    keywords: dict[str, Any],
    traced: Sequence[str] = (),
    donated: Sequence[str] = (),
    is_static: Callable[[str], bool] = lambda name: False,
    varying: frozenset[Path] = frozenset(),
    shared: Mapping[int, Shared] | None = None,
) -> DividedArguments:
    """Divide the arguments of a call.

    Args:
        positional: by the names of the function's parameters, in order.
        keywords: by name.
        traced: patterns of the names of numbers that are tensors of the program.
        donated: patterns of the names of tensors that are donated, or of arguments that
            have them.
        is_static: whether the values of the tensor with this name are a part of the
            program.
        varying: the numbers that are arguments of the program.
        shared: by id, what the function also reaches by itself.

    Raises:
        PortError: an argument is neither a tensor nor hashable, was donated to an
            earlier call, or has tensors in an object that cannot be taken apart; or a
            pattern fits nothing.
    """
    # A cache is one argument, donated as a whole.
    shared = shared or {}
    whole = {number for number, place in shared.items() if place.kind == "object"}
    flattener = Flattener(caches_are_leaves=True, whole=whole)
    for name, value in positional.items():
        flattener.add_root(name, value)
    # In a fixed order, so that calls that differ in nothing else share a program.
    names = tuple(sorted(keywords))
    for name in names:
        flattener.add_root(name, keywords[name])
    graph = flattener.graph()
    _check_patterns(traced, graph.names)
    arrays: list[Any] = []
    cache_arrays: list[list[Any]] = []
    generators: list[torch.Generator] = []
    arguments: list[Argument] = []
    numbers: Numbers = {}
    for name, leaf in zip(graph.names, graph.leaves, strict=True):
        in_state = shared.get(id(leaf))
        # A tensor that is static, or donated, is what the caller says that it is.
        if in_state is not None and not (
            in_state.kind == "tensor" and (is_static(name) or is_inside(name, donated))
        ):
            arguments.append(Argument(name, "state", in_state))
        elif is_array(leaf) and not is_static(name):
            arrays.append(usable_array(leaf, name))
            arguments.append(Argument(name, "tensor", _integer_dtype(leaf)))
        elif traced and isinstance(leaf, int | float) and fits(name, traced):
            arrays.append(jnp.asarray(leaf))
            arguments.append(Argument(name, "number", type(leaf)))
        elif is_transformers_cache(leaf):
            refuse_retired(leaf, name)
            # jax has to know the class of each layer before the cache can be flattened.
            pytrees.register_used(leaf)
            claim_cache(leaf)
            with counters_as_numbers(leaf, name, varying) as counters:
                cache_tensors, structure = jax.tree_util.tree_flatten(leaf)
            numbers |= counters
            cache_arrays.append(
                [usable_array(tensor, name) for tensor in cache_tensors]
            )
            arguments.append(Argument(name, "cache", structure))
        elif isinstance(leaf, torch.Generator):
            number = _number_generator(leaf, generators)
            arguments.append(Argument(name, "generator", number))
        elif ("argument", name) in varying and is_number(leaf) and not is_static(name):
            numbers["argument", name] = int(leaf)
            place = StaticValue(number_at(("argument", name)))
            arguments.append(Argument(name, "static", place))
        else:
            arguments.append(_part_of_program(leaf, name))
    _check_donated(donated, arguments)
    code = tuple(part for part in graph.code if _is_of_user(part))
    layout = Layout(graph.structure, names, tuple(arguments), code)
    return DividedArguments(arrays, cache_arrays, generators, layout, graph, numbers)


def _number_generator(
    generator: torch.Generator, generators: list[torch.Generator]
) -> int | None:
    """The number of a generator among those of the call, which get it if it is new;
    None for torch's default one, which code that names none draws from, too.

    Its state is an argument of the program, so that a new generator for each call is
    nothing new.
    """
    if generator is torch.default_generator:
        return None
    if generator not in generators:
        generators.append(generator)
    return generators.index(generator)


def _integer_dtype(leaf: Any) -> torch.dtype | None:
    """torch.int32 for a tensor of that dtype, on the host or the device."""
    is_narrow = isinstance(leaf, torch.Tensor) and leaf.dtype is torch.int32
    return torch.int32 if is_narrow else None


def _is_of_user(code: Any) -> bool:
    """Whether a function or a class is the user's, or a partial function, which may
    be.
    """
    return isinstance(code, functools.partial) or not is_library(code.__module__ or "")


def _part_of_program(leaf: Any, name: str) -> Argument:
    """The argument for a leaf that has no array among those of the program."""
    if is_array(leaf):
        return Argument(name, "host", HostInput.of(leaf))
    if isinstance(leaf, torch.nn.Module) and not is_on_host(leaf):
        # Weak, because jax keeps the layout of every program, and would keep the module
        # alive.
        return Argument(name, "module", weakref.ref(leaf))
    return Argument(name, "static", static_value(leaf, name))


def _check_donated(patterns: Sequence[str], arguments: Sequence[Argument]) -> None:
    names = [
        argument.name for argument in arguments if argument.kind in ("tensor", "cache")
    ]
    unused = [
        pattern
        for pattern in patterns
        if not any(is_inside(name, [pattern]) for name in names)
    ]
    _refuse_unused(unused, names, "donate")


def _check_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    unused = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    _refuse_unused(unused, names, "traced")


def check_static(
    patterns: Sequence[str], names: Sequence[str], parameters: Mapping[str, Parameter]
) -> None:
    """PortError for a pattern that fits neither an argument of the call, nor one that
    it leaves out.

    Args:
        names: of the arguments.
        parameters: of the function.
    """
    if any(
        parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()
    ):
        return
    unused = [
        pattern
        for pattern in patterns
        if not fnmatch.filter(parameters, pattern.partition(".")[0])
        and not any(is_inside(name, [pattern]) for name in names)
    ]
    _refuse_unused(unused, [*parameters], "static")


def _refuse_unused(unused: Sequence[str], names: Sequence[str], option: str) -> None:
    if unused:
        raise PortError(
            f"no argument of this call is called {', '.join(unused)}",
            where=option,
            fix=f"the names are {', '.join(names[:_NAMES_SHOWN])}",
        )


def shapes_key(arrays: Iterable[Any]) -> Hashable:
    """A key of the shapes and dtypes of arrays."""
    return tuple(
        (array.shape, array.dtype) for array in arrays if hasattr(array, "dtype")
    )


def usable_array(value: Any, name: str) -> Any:
    """The value as an array on the device.

    Raises:
        PortError: it has been donated, with a cache or by the user. On several devices
            jax would kill the process.
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


def static_value(value: Any, name: str) -> StaticValue:
    """A value that is a part of the program; PortError if it cannot be compared."""
    # Configurations have no hash; their fields are compared.
    if hasattr(type(value), "to_dict"):
        return StaticValue(value)
    try:
        hash(value)
    except TypeError as error:
        raise PortError(
            "an argument or a result of a compiled function is neither a tensor nor hashable",
            where=f"{name}: {type(value).__name__} {value!r:.60}",
            fix="pass tensors, or Python values that can be dictionary keys",
        ) from error
    return StaticValue(value)
