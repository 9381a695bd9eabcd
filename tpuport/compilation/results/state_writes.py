"""What traced code writes to its state: to attributes, items and variables, and to
tensors.

While a function is traced the tensors that it computes have no values. What it leaves
in its models, in lists and dictionaries, and in variables is taken out of them again
when the trace ends. It leaves the program beside the results (`call_results`), and
after every call of the program each place gets what the function left there, as in
torch.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.compilation.arguments.call_numbers import place_numbers
from tpuport.compilation.model_weights import WeightsInUse
from tpuport.compilation.shared_tensors import Slot, WeightSlot, show_weight
from tpuport.errors import PortError
from tpuport.internals.torchax_internals import ARRAY
from tpuport.objects.part_containers import ABSENT, NamedContainer, late_names
from tpuport.objects.state.host_input import HostInput
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.state_places import (
    WEIGHTS,
    Location,
    Snapshot,
    assigning_line,
    containers_of,
    is_same,
    take_snapshots,
)


class Assignment(NamedTuple):
    """What a function has left in one container of its state.

    Attributes:
        location: of the container.
        names: of the values that are others than before; of a container without names,
            the numbers of all its values.
        late: the names that come last since; None for a container without names.
    """

    location: Location
    names: tuple[Any, ...]
    late: tuple[Any, ...] | None

    def apply(self, state: PythonState, values: Sequence[Any]) -> None:
        """Assign values, `ABSENT` for a name that is gone, in the caller's state."""
        node = state.nodes[self.location.node]
        container = containers_of(node)[self.location.part]
        contents = dict(zip(self.names, values, strict=True))
        if self.late is None:
            container.fill(contents)
        else:
            assert isinstance(container, NamedContainer)
            container.change(contents, self.late)


class StateChanges(NamedTuple):
    """Traced. What a function has changed in its state.

    Attributes:
        tensors: the new arrays of the state's tensors, by their number.
        assignments: of each container that has changed.
        values: the path and the new value of each name of the assignments, in order.
        replaced: (what was in a place, what is there now).
        host: the new values of tensors of the host that were written to, by number.
    """

    tensors: dict[int, jax.Array]
    assignments: list[Assignment]
    values: list[tuple[str, Any]]
    replaced: list[tuple[Any, Any]]
    host: tuple[tuple[int, HostInput], ...]


class StateTrace:
    """A trace of a function that may write to its state.

    Args:
        state: of the function.
        arrays: in place of the arrays of the state's tensors; None for those that are
            weights.
        shared: these, as of `weights_in_state`.

    Attributes:
        state: as above.
    """

    def __init__(
        self,
        state: PythonState,
        arrays: Sequence[jax.Array | None],
        shared: Sequence[tuple[int, WeightSlot]] = (),
    ) -> None:
        self.state = state
        self._arrays = list(arrays)
        self._shared = dict(shared)
        # By the id of the tensor that a model has while it is traced.
        self._weight_slots: dict[int, WeightSlot] = {}

    @contextlib.contextmanager
    def recorded(self, in_use: Sequence[WeightsInUse]) -> Iterator[None]:
        """Traced. Let the state be as it was when the block ends; what the block
        changed is for `find_changes`.

        Args:
            in_use: the weights of each model.
        """
        self._weight_slots = {
            id(tensor): (model, name)
            for model, weights in enumerate(in_use)
            for name, tensor in weights.tensors.items()
            if name in weights.arrays
        }
        tensors = self.state.tensors
        attributes = [dict(vars(tensor)) for tensor in tensors]
        before: list[Snapshot] = []
        try:
            self._place_tensors(in_use)
            before += take_snapshots(self.state)
            self._before = before
            # Which refuses a number that is in a tuple.
            if self.state.numbers:
                place_numbers(self.state, before)
                self._before = [
                    Snapshot.of(location, container)
                    for location, container, *_ in before
                ]
            self._host_before = self.state.host_tensors.values()
            with self.state.host_tensors.restored(self._host_before):
                yield
        finally:
            for snapshot in before:
                snapshot.restore()
            for tensor, former in zip(tensors, attributes, strict=True):
                vars(tensor).clear()
                vars(tensor).update(former)

    def _place_tensors(self, in_use: Sequence[WeightsInUse]) -> None:
        """Give the tensors of the state their arrays."""
        pairs = zip(self.state.tensors, self._arrays, strict=True)
        for number, (tensor, array) in enumerate(pairs):
            if number not in self._shared:
                # Tensors that view one another are separate arguments, and writes to
                # one of them are refused.
                vars(tensor).update({ARRAY: array, "_alias": None})
                continue
            model, name = self._shared[number]
            show_weight(tensor, in_use[model].tensors[name])

    def find_changes(self) -> StateChanges:
        """Traced, inside of `recorded`. What the function has changed."""
        host = self.state.host_tensors.find_writes(self._host_before)
        changes = StateChanges(self._find_tensor_writes(), [], [], [], host)
        for snapshot in self._before:
            if not snapshot.is_current():
                self._add_assignment(snapshot, changes)
        return changes

    def _find_tensor_writes(self) -> dict[int, jax.Array]:
        pairs = enumerate(zip(self.state.tensors, self._arrays, strict=True))
        return {
            number: compat.as_jax(tensor)
            for number, (tensor, array) in pairs
            # What is written to a weight, by whatever name, is among the writes to
            # weights.
            if number not in self._shared and compat.as_jax(tensor) is not array
        }

    def _add_assignment(self, snapshot: Snapshot, changes: StateChanges) -> None:
        location, container, before, _ = snapshot
        after = container.read()
        # In the order of the code, as names that are new come behind all others.
        names, late = tuple(after), None
        if container.has_names:
            late = late_names(before, after)
            names = tuple(
                name
                for name in before | after
                if not is_same(before.get(name, ABSENT), after.get(name, ABSENT))
            )
        changes.replaced.extend(
            (old, after[name]) for name, old in before.items() if name in after
        )
        if names or late or late is None:
            path = self.state.path(location.node)
            changes.assignments.append(Assignment(location, names, late))
            changes.values.extend(
                (container.path_of(path, name), after.get(name, ABSENT))
                for name in names
            )

    def slot_of(self, tensor: torch.Tensor) -> Slot | None:
        """Traced. Which tensor of the state, or which weight, this is."""
        number = self.state.find_tensor(tensor)
        return self._weight_slots.get(id(tensor)) if number is None else number

    def slot_in_one_place(self, tensor: Any) -> Slot | None:
        """Traced. As `slot_of`, if the tensor was in one place only."""
        slot = self.slot_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if slot is None or isinstance(slot, int):
            return slot if slot is not None and self.state.has_one_place(slot) else None
        weights = (
            contents.values()
            for location, _, contents, _ in self._before
            if location.part in WEIGHTS
        )
        places = sum(
            weight is tensor for weight in itertools.chain.from_iterable(weights)
        )
        return slot if places == 1 else None


def check_leaks(state: PythonState) -> None:
    """PortError if a value of a trace that has ended is still in a state, where nothing
    can give it a value.
    """
    for path, tensor in state.tensor_paths():
        if isinstance(compat.as_jax(tensor), Tracer):
            raise PortError(
                f"{path} is assigned a tensor in a way that cannot leave the compiled program",
                where=assigning_line(state, path),
                fix="return it from the function; in a module, assign it with self.name = x or self.list.append(x)",
            )
