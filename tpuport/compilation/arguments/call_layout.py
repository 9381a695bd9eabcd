"""How to put the arguments of a call together again, in the program that is made for
it.
"""

import fnmatch
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import torch

from tpuport import compat
from tpuport.compat import randomness
from tpuport.compilation.arguments.descriptions import (
    CounterText,
    HostText,
    ShapeText,
)
from tpuport.objects.object_graph import State, Structure, read_state, unflatten
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.traced_numbers import TracedNumber


class Argument(NamedTuple):
    """One leaf of the arguments, as far as a program is made for it.

    Attributes:
        name: its path from the function's parameter: "inputs.ids".
        kind: which of the program's arguments has it; a number is a tensor in the
            program, a static value a part of it. Weights of a module are arguments too,
            and the rest of it is in the state of the function, as is what the function
            also reaches by itself. A host tensor is a part of it, and has its
            values while the program is traced.
        content: of a tensor, torch.int32 if it has that dtype, of which the array says
            nothing; the structure of a cache, the number of a random generator, the
            class of a number, a weak reference to a module, what it is in the state,
            the values of a host tensor, or the static value.
    """

    name: str
    kind: Literal[
        "tensor", "number", "cache", "generator", "module", "state", "host", "static"
    ]
    content: Hashable


class Rebuilt(NamedTuple):
    """Traced. The arguments of a call as the function gets them.

    Attributes:
        args, kwargs: of the function.
        leaves: of the arguments; `tensor_leaves` are the numbers of the tensors, and
            `arrays` what these are.
        objects: by number; `states` is what they consist of before the call.
        replaced: ids of the leaves that are others than the caller's: tensors for
            numbers, caches for donated ones; `given` those of tensors that the user
            donates.
        host_tensors: by name.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    leaves: list[Any]
    tensor_leaves: list[int]
    arrays: list[Any]
    objects: dict[int, Any]
    states: dict[int, State]
    replaced: frozenset[int]
    given: frozenset[int]
    host_tensors: dict[str, torch.Tensor]


class Layout(NamedTuple):
    """How to put the arguments of a call together again. Hashable: it is a static
    argument of the program.

    Attributes:
        structure: of the values of all arguments.
        keywords: the names of the last of them; those before are positional.
        arguments: its leaves.
        code: the user's functions, and classes whose methods may be called.
    """

    structure: Structure
    keywords: tuple[str, ...]
    arguments: tuple[Argument, ...]
    code: tuple[Any, ...]

    def join(
        self,
        arrays: list[Any],
        donated: list[list[Any]],
        state: PythonState,
        given: Sequence[str],
    ) -> Rebuilt:
        """Traced. The arguments of the function.

        Args:
            arrays: of the tensors, in order.
            donated: for each cache the arrays in it.
            state: of the function.
            given: patterns of the names of tensors that the user donates.
        """
        tensors, caches = iter(arrays), iter(compat.as_torch(donated))
        leaves: list[Any] = []
        for argument in self.arguments:
            content: Any = argument.content
            match argument.kind:
                case "tensor":
                    leaves.append(compat.wrap(next(tensors), content))
                case "number":
                    leaves.append(compat.wrap(next(tensors)))
                case "cache":
                    leaves.append(jax.tree_util.tree_unflatten(content, next(caches)))
                case "generator":
                    leaves.append(randomness.call_generator(content))
                case "module":
                    leaves.append(content())
                case "state":
                    leaves.append(state.value_of(content))
                case "host":
                    leaves.append(content.as_tensor())
                case "static":
                    value = content.value
                    is_varying = type(value) is TracedNumber
                    # One of the trace that is under way.
                    leaves.append(TracedNumber(value.term) if is_varying else value)
        values, objects = unflatten(self.structure, leaves)
        states = {number: read_state(value) for number, value in objects.items()}
        positional = len(values) - len(self.keywords)
        kwargs = dict(zip(self.keywords, values[positional:], strict=True))
        kinds = [argument.kind for argument in self.arguments]
        numbers = tensor_leaves(self.arguments)
        return Rebuilt(
            values[:positional], kwargs, leaves, numbers, arrays, objects, states,
            frozenset(id(leaf) for leaf, kind in zip(leaves, kinds, strict=True) if kind in ("number", "cache")),
            frozenset(id(leaves[numbers[number]]) for number in self.tensors_named(given)),
            {
                argument.name: leaf
                for leaf, argument in zip(leaves, self.arguments, strict=True)
                if argument.kind == "host"
            },
        )  # fmt: skip

    def modules(self) -> list[torch.nn.Module]:
        """The modules among the arguments, each once."""
        references = [
            argument.content for argument in self.arguments if argument.kind == "module"
        ]
        return list(dict.fromkeys(reference() for reference in references))  # type: ignore[operator]

    def tensors_named(self, patterns: Sequence[str]) -> list[int]:
        """The numbers, among the tensors of the program, of those with these names or
        in arguments with these names.
        """
        names = [
            argument.name
            for argument in self.arguments
            if argument.kind in ("tensor", "number")
        ]
        return [
            number for number, name in enumerate(names) if is_inside(name, patterns)
        ]

    def describe(self, tensors: list[Any], donated: list[list[Any]]) -> dict[str, str]:
        """What a program is compiled for, by argument: shapes of tensors, values of the
        rest.
        """
        remaining_tensors, remaining_caches = iter(tensors), iter(donated)
        descriptions: dict[str, str] = {}
        for argument in self.arguments:
            match argument.kind:
                case "tensor" | "number":
                    tensor = next(remaining_tensors)
                    text: str = ShapeText(f"{tensor.dtype}{tuple(tensor.shape)}")
                case "cache":
                    tensors_of_cache = next(remaining_caches)
                    text = ShapeText(
                        [tuple(tensor.shape) for tensor in tensors_of_cache]
                    )
                    descriptions |= _counters_in(argument, tensors_of_cache)
                case "generator":
                    text = "torch.Generator"
                case "state":
                    text = "what the function also reaches by itself"
                case "module":
                    text = type(argument.content()).__name__  # type: ignore[operator]
                case "host":
                    text = HostText(argument.content)
                case "static":
                    text = repr(argument.content)
            descriptions[argument.name] = text
        return descriptions


def _counters_in(argument: Argument, tensors: Sequence[Any]) -> dict[str, str]:
    """The numbers that the layers of a cache keep beside their tensors, by path; each
    other value makes another program.
    """
    cache = jax.tree_util.tree_unflatten(argument.content, tensors)  # type: ignore[arg-type]
    return {
        f"{argument.name}.layers[{number}].{name}": CounterText(value)
        for number, layer in enumerate(getattr(cache, "layers", ()))
        for name, value in vars(layer).items()
        if type(value) is int
    }


def tensor_leaves(arguments: Iterable[Argument]) -> list[int]:
    """Numbers of the leaves that are tensors of the program."""
    return [
        number
        for number, argument in enumerate(arguments)
        if argument.kind in ("tensor", "number")
    ]


def fits(name: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern fits a name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_inside(name: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern fits a name, or the name of something that it is in."""
    parts = name.split(".")
    return any(
        fits(".".join(parts[:count]), patterns) for count in range(1, len(parts) + 1)
    )
