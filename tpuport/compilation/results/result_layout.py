"""How to make what left a program, its results and what it left in objects and in its
state, from the arrays that the program returns in a call.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tpuport import compat
from tpuport.compilation.arguments.call_numbers import settle
from tpuport.compilation.model_weights import sharded_as
from tpuport.compilation.results.state_writes import Assignment
from tpuport.compilation.shared_tensors import Slot, WeightSlot
from tpuport.internals.torchax_internals import set_array
from tpuport.objects import object_graph
from tpuport.objects.state.host_input import HostInput
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.traced_numbers import Path


class LiveCall:
    """What leaves are made of after a call, before anything is assigned.

    Args:
        arrays: those that the program returned, as tensors.
        originals: the leaves of the arguments.
        state: the caller's.
        numbers: of the call.
    """

    def __init__(
        self,
        arrays: Sequence[torch.Tensor],
        originals: Sequence[Any],
        state: PythonState,
        numbers: Mapping[Path, int],
    ) -> None:
        self.arrays = arrays
        self.originals = originals
        self.state = state
        self.numbers = numbers
        self._copies: dict[int, Any] = {}

    @functools.cached_property
    def weights(self) -> list[dict[str, torch.Tensor]]:
        """The weights of each model that the call started with."""
        return list(map(self.state.named_weights, self.state.modules))

    def state_tensor(self, slot: Slot) -> torch.Tensor:
        """A tensor of the state, or a weight."""
        if isinstance(slot, int):
            return self.state.tensors[slot]
        model, name = slot
        return self.weights[model][name]

    def is_on_host(self, number: int) -> bool:
        """Whether a leaf of the arguments is a tensor on the host, or an array."""
        original = self.originals[number]
        is_value = isinstance(original, object_graph.HostArray)
        is_tensor = object_graph.is_array(original) and not is_value
        return is_tensor and not compat.is_ported(original)

    def original(self, number: int, *, on_device: bool) -> Any:
        """A leaf of the arguments, a tensor on the device if asked for."""
        original = self.originals[number]
        if isinstance(original, object_graph.HostArray):
            # The caller's own NumPy array, not the copy that the program took.
            return original.source
        if on_device and self.is_on_host(number):
            return compat.as_torch(compat.to_jax(torch.as_tensor(original)))
        return original

    def number(self, value: Any) -> Any:
        """A number that varies, as it is in this call; any other value as it is."""
        return settle(value, self.numbers)

    def copy(self, value: Any) -> Any:
        """A tensor of the host, or an array of NumPy, that the code has made: what the
        caller writes to it is in no other call. Views stay views of one another.
        """
        return copy.deepcopy(value, self._copies)


class Result(NamedTuple):
    """A tensor that the program computes.

    Attributes:
        array: its number.
        requires_grad: of a parameter; None for any other tensor.
        weight: whose place it has.
    """

    array: int
    requires_grad: bool | None = None
    weight: WeightSlot | None = None

    def __call__(self, live: LiveCall) -> torch.Tensor:
        """The tensor of a call."""
        tensor = live.arrays[self.array]
        if self.weight is not None:
            # With another sharding the next call would be compiled again.
            former = live.state_tensor(self.weight)
            set_array(tensor, sharded_as(former, compat.as_jax(tensor)))
        if self.requires_grad is None:
            return tensor
        return torch.nn.Parameter(tensor, self.requires_grad)


# How to make a leaf of what leaves a program.
Leaf = Result | Callable[[LiveCall], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class ResultLayout:
    """How to make a function's output, the new states of its arguments, and what it has
    left in its state, from the arrays of a program. It equals itself alone: it belongs
    to one program.

    Attributes:
        structure: of the output, the changed objects and what was assigned to the
            state. Objects of the arguments have their numbers among these.
        leaves: of all these; `returned` of them are those of the output.
        replaced: (tensor of the program, number of the array that has its place now),
            for tensors that are nowhere else. These arrays come first.
        assignments: to the state, of the roots of `structure` behind the first.
        host: the new values of tensors of the host in the state that were written to,
            by number.
        kept: numbers of objects of the arguments that the state has got, by their
            numbers there; `kept_leaves` are the leaves of the arguments in them.
    """

    structure: object_graph.Structure
    leaves: tuple[Leaf, ...]
    returned: int
    replaced: tuple[tuple[Slot, int], ...]
    assignments: tuple[Assignment, ...]
    host: tuple[tuple[int, HostInput], ...]
    kept: Mapping[int, int]
    kept_leaves: tuple[int, ...]

    @property
    def changes_state(self) -> bool:
        """Whether anything of the state is assigned."""
        return bool(self.assignments or self.host)

    def restore(self, live: LiveCall, objects: Mapping[int, Any]) -> Any:
        """The output, after what the program left has been assigned.

        Args:
            objects: of the arguments, by number.
        """
        live.state.host_tensors.write(self.host)
        # All of them before the first is assigned: weights may change places.
        leaves = [leaf(live) for leaf in self.leaves]
        structure = self.structure
        # On the host the next calls would be compiled for the values of each.
        if self.kept and not any(map(live.is_on_host, self.kept_leaves)):
            kept = {new: objects[old] for new, old in self.kept.items()}
            objects = {**objects, **kept}
            nodes = (node for node in structure.nodes if node[0] not in self.kept)
            structure = structure._replace(nodes=tuple(nodes))
        (output, *values), _ = object_graph.unflatten(structure, leaves, objects)
        for assignment in self.assignments:
            count = len(assignment.names)
            assignment.apply(live.state, values[:count])
            values = values[count:]
        return output
