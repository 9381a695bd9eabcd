"""A call of a compiled function, prepared: the arguments of its program, those of the
caller, and the state.
"""

import itertools
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import torch

from tpuport import compat
from tpuport.compat.recording import requires_gradient
from tpuport.compat.tracing import is_tracing
from tpuport.compilation.arguments.cache_arguments import retire_cache
from tpuport.compilation.arguments.call_arguments import DividedArguments, shapes_key
from tpuport.compilation.arguments.call_layout import Layout
from tpuport.compilation.arguments.call_numbers import CallNumbers
from tpuport.compilation.arguments.descriptions import (
    CounterText,
    HostText,
    StateText,
)
from tpuport.compilation.arguments.donated_tensors import mark_donated
from tpuport.compilation.programs import overwritten_arrays
from tpuport.compilation.recorded_programs import Recorded, check_weights
from tpuport.compilation.shared_tensors import Slot, WeightSlot
from tpuport.objects import object_graph
from tpuport.objects.state.host_input import HostInput
from tpuport.objects.state.python_state import PythonState, StateKey

# Programs of one function for numbers that differ in nothing but comparisons.
_COMMON_BRANCHES = 3


class StaticPart(NamedTuple):
    """What a program is made for beside the shapes of its arrays.

    Attributes:
        layout: of the arguments.
        models: (weak reference, number of ports) of each model. Weak, because jax keeps
            the static arguments of every program, and would keep a model alive that has
            long been replaced.
        state: the key of everything else that the function reaches.
        attention: the settings that the user has registered.
        donated: patterns of the names of arguments that the user donates.
        narrow: of each model, the names of its weights of torch's int32, which their
            arrays do not tell from int64.
        shared: tensors of the state that are weights too, as of `weights_in_state`.
        decided: the values that the function computes and decides by; None if it is not
            to ask for any.
        numbers: of the call that are arguments of the program. Their array comes last
            among the tensors.
        branch: which of the programs that differ in the outcomes of comparisons of
            these.
        recorded: the tensors whose gradients autograd records.
    """

    layout: Layout
    models: tuple[tuple[weakref.ref[torch.nn.Module], int], ...]
    state: StateKey[PythonState]
    attention: Hashable
    donated: tuple[str, ...]
    narrow: tuple[tuple[str, ...], ...]
    shared: tuple[tuple[int, WeightSlot], ...] = ()
    decided: tuple[HostInput, ...] | None = None
    numbers: CallNumbers = CallNumbers({})
    branch: int = 0
    recorded: Recorded | None = None

    def split_tensors(self, tensors: list[Any]) -> tuple[list[Any], list[Any], Any]:
        """The tensors among the arguments, those of the state, and the array of the
        numbers.
        """
        assert self.state.state is not None  # the call that is being traced has it
        end = len(tensors) - bool(self.numbers)
        count = end - len(self.state.state.tensors)
        array = tensors[end] if self.numbers else None
        return tensors[:count], tensors[count:end], array


class ProgramArguments(NamedTuple):
    """The arguments of the program.

    Attributes:
        weights: of each model, by name.
        tensors: among the arguments of the call, then those of the function's state;
            None for one that is a weight.
        donated: the tensors of each cache, which are donated unless the program only
            reads them.
        static: what the program is made for.
    """

    weights: list[dict[str, Any]]
    tensors: list[Any]
    donated: list[list[Any]]
    static: StaticPart


class PreparedCall(NamedTuple):
    """A call of the function: the arguments of its program, those of the caller, and
    the state.

    Attributes:
        changed_caches: the numbers of the caches that the program changes.
    """

    arguments: ProgramArguments
    divided: DividedArguments
    state: PythonState
    changed_caches: tuple[int, ...] = ()

    @property
    def numbers(self) -> CallNumbers:
        """That are arguments of the program."""
        return self.arguments.static.numbers

    @property
    def shapes_key(self) -> tuple[Hashable, ...]:
        """A key of the forms of the program's arguments."""
        _, tensors, donated, _ = self.arguments
        return shapes_key(tensors), tuple(map(shapes_key, donated))

    @property
    def key_of_numbers(self) -> Hashable:
        """Equal for calls that differ in nothing but the values of their numbers."""
        static = self.arguments.static._replace(decided=None, recorded=None)
        return static, *self.shapes_key

    def recorded(self) -> "PreparedCall":
        """This call, with the tensors whose gradients are to be recorded.

        Raises:
            NotRecorded: weights among them are rows of stacked arrays.
        """
        if not torch.is_grad_enabled() or is_tracing():
            return self
        tensors = [
            self.divided.graph.leaves[leaf] for leaf in self.divided.tensor_leaves
        ]
        shared = {len(tensors) + number for number, _ in self.arguments.static.shared}
        tensors += self.state.tensors
        slots: list[Slot] = [
            number
            for number, is_asked in enumerate(requires_gradient(tensors))
            if is_asked and number not in shared
        ]
        if not slots and not any(map(_is_trained, self.state.modules)):
            return self
        for model, module in enumerate(self.state.modules):
            weights = self.state.named_weights(module)
            names = list(
                itertools.compress(weights, requires_gradient(weights.values()))
            )
            check_weights(names, self.arguments.weights[model])
            slots += [(model, name) for name in names]
        if not slots:
            return self
        static = self.arguments.static._replace(recorded=Recorded(tuple(slots)))
        return self._replace(arguments=self.arguments._replace(static=static))

    def tensor_at(self, slot: Slot) -> Any:
        """The caller's own tensor, or array, of a tensor of the program."""
        if not isinstance(slot, int):
            model, name = slot
            return self.state.named_weights(self.state.modules[model])[name]
        leaves = self.divided.tensor_leaves
        if slot < len(leaves):
            return self.divided.graph.leaves[leaves[slot]]
        return self.state.tensors[slot - len(leaves)]

    def held_elsewhere(self, slots: Sequence[Slot]) -> set[Slot]:
        """Which of these tensors are also anywhere else than in the objects of the
        call, of the state, or a model.
        """
        if not slots:
            return set()
        graph, leaves = self.divided.graph, self.divided.tensor_leaves
        places, in_state = (
            object_graph.count_places(graph.structure),
            self.state.count_references(),
        )
        shared: set[Slot] = set()
        for slot in slots:
            tensors = [self.tensor_at(slot)]
            # The state has counted itself, and not the one place where the tensor is.
            expected = in_state[id(tensors[0])] + 1
            if not isinstance(slot, int):
                expected = 1
            elif slot < len(leaves):
                # Beside the places in objects it is among the graph's leaves.
                expected = places[leaves[slot]] + 1
            if not compat.is_ported(tensors[0]) or overwritten_arrays.is_held_elsewhere(
                tensors, 0, expected
            ):
                shared.add(slot)
        return shared

    def own_overwritten(
        self,
        arrays: list[Any],
        overwrites: Sequence[overwritten_arrays.Overwrite],
        places: Sequence[int],
        arguments: ProgramArguments,
    ) -> None:
        """Copy the arrays that a program overwrites and that others refer to.

        Args:
            arrays: the inputs of the program; copies take the places of these.
            places: the numbers of the overwritten ones among these.
            arguments: of the program, with which this call has all it has collected.
        """
        shared = self.held_elsewhere(
            [slot for slot, kind in overwrites if kind == "replaced"]
        )
        to_copy = [
            number for number, (slot, _) in enumerate(overwrites) if slot in shared
        ]
        # Of an array of jax itself, the caller's variable is one more reference.
        free = [
            number
            for number, (slot, kind) in enumerate(overwrites)
            if kind == "donated"
            and isinstance(slot, int)
            and isinstance(self.tensor_at(slot), jax.Array)
        ]
        places = places[: len(overwrites)]
        overwritten = [arrays[place] for place in places]
        # Twice, once for their places among the inputs: in any other place an array is
        # an input that stays.
        containers: list[Any] = [
            overwritten, overwritten, arguments.tensors, self.divided.arrays,
            *(part.values() for part in (*arguments.weights, *self.arguments.weights)),
        ]  # fmt: skip
        if arguments.tensors is not self.arguments.tensors:
            containers.append(self.arguments.tensors)
        owned = overwritten_arrays.own_arrays(overwritten, containers, to_copy, free)
        for place, array in zip(places, owned, strict=True):
            arrays[place] = array

    def retire_caches(self) -> None:
        """Let further calls refuse the caches that this one has changed."""
        arguments = self.divided.layout.arguments
        caches = [
            leaf
            for leaf, argument in zip(self.divided.graph.leaves, arguments, strict=True)
            if argument.kind == "cache"
        ]
        for number in self.changed_caches:
            retire_cache(caches[number])

    def mark_donated(self, patterns: Sequence[str], program: str) -> None:
        """Let every use of the tensors that the user has donated raise."""
        for number in self.divided.layout.tensors_named(patterns):
            tensor = self.tensor_at(number)
            if compat.is_ported(tensor):
                leaf = self.divided.tensor_leaves[number]
                mark_donated(tensor, self.divided.graph.names[leaf], program)


def _is_trained(module: torch.nn.Module) -> bool:
    """Whether any part of a module that has weights to train is in training mode."""
    return any(
        part.training and any(requires_gradient(part.parameters(recurse=False)))
        for part in module.modules()
    )


def describe_program(arguments: ProgramArguments) -> dict[str, str] | None:
    """What a program is made for, by name; None for the second and third of a number
    that code compares, which are normal: a window that fills, and is full.
    """
    _, tensors, donated, static = arguments
    if 0 < static.branch < _COMMON_BRANCHES:
        return None
    texts: dict[str, str] = {
        name: StateText(text) for name, text in static.state.describe().items()
    }
    for (room, path), value in static.numbers.values.items():
        form = {"cache": CounterText, "state": StateText}.get(room, str)
        texts[path] = form(value)
    if static.decided:
        texts |= {"what it computes and decides by": HostText(static.decided)}
    return texts | static.layout.describe(tensors, donated)
