"""What traced code assigns to attributes, items and variables: results of the program,
assigned after each call.

While a function is traced the tensors that it computes have no values. What it leaves
in its models, in lists and dictionaries, and in variables is taken out of them again
when the trace ends. The tensors in it become results of the program, and after every
call of the program each place gets what the function left there, as in torch.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.compilation.arguments.call_numbers import place_numbers, settle
from tpuport.compilation.model_weights import WeightsInUse, sharded_as
from tpuport.compilation.shared_tensors import WeightSlot, show_weight
from tpuport.errors import PortError
from tpuport.internals.torch_internals import is_transformed
from tpuport.internals.torchax_internals import ARRAY
from tpuport.objects import pytrees
from tpuport.objects.object_parts import PLAIN, leads_to_traced
from tpuport.objects.part_containers import (
    ABSENT,
    Container,
    NamedContainer,
    late_names,
)
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
from tpuport.objects.traced_numbers import Path, TracedNumber, of_this_trace


class _Live:
    """What values are rebuilt from after a call, before anything is assigned.

    Args:
        state: the caller's.
        arrays: those that the program returned.
        numbers: of the call.
    """

    def __init__(
        self,
        state: PythonState,
        arrays: Sequence[jax.Array],
        numbers: Mapping[Path, int],
    ) -> None:
        self.state = state
        self.numbers = numbers
        self._arrays = arrays
        self._tensors: dict[int, torch.Tensor] = {}
        self._copies: dict[int, Any] = {}

    @functools.cached_property
    def weights(self) -> list[dict[str, torch.Tensor]]:
        """The weights of each model that the call started with."""
        return list(map(self.state.named_weights, self.state.modules))

    def tensor(
        self, index: int, make: Callable[[jax.Array], torch.Tensor] = compat.wrap
    ) -> torch.Tensor:
        """The tensor of an array, the same one wherever it is assigned."""
        if index not in self._tensors:
            self._tensors[index] = make(self._arrays[index])
        return self._tensors[index]

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor that the trace made on the host: what the caller writes
        to it is in no other call. Views stay views of one another.
        """
        return copy.deepcopy(tensor, self._copies)


_Rebuild = Callable[[_Live], Any]
# The name of an item, and how to make its value; `ABSENT` if the item is gone.
_ItemChange = tuple[Any, _Rebuild]


class StateArrays(NamedTuple):
    """The arrays of what a program changed in the state of its function.

    Attributes:
        tensors: the new arrays of the state's tensors, by their number.
        assigned: those of `StateWrites`, in order.
    """

    tensors: dict[int, Any]
    assigned: list[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class StateWrites:
    """What a program assigns, without the arrays. It equals itself alone: it belongs to
    one program.

    Attributes:
        items: the changed values of each container that has names, and the names that
            come last since.
        contents: how to make the new contents of each list, set and variable.
        replaced: (number of a tensor of the state, or slot of a weight; number of the
            array that has its place now), for tensors that are in one place only.
        host: the new values of tensors of the host that were written to, by number.
    """

    items: tuple[tuple[Location, tuple[_ItemChange, ...], tuple[Any, ...]], ...]
    contents: tuple[tuple[Location, _Rebuild], ...]
    replaced: tuple[tuple[int | WeightSlot, int], ...]
    host: tuple[tuple[int, HostInput], ...]

    def apply(
        self,
        state: PythonState,
        arrays: Sequence[jax.Array],
        numbers: Mapping[Path, int],
    ) -> None:
        """Assign what the program left, with the arrays that it returned, and the
        numbers of the call.
        """
        live = _Live(state, arrays, numbers)
        state.host_tensors.write(self.host)
        # All of them before the first is assigned: weights may change places.
        items = [
            (location, {name: rebuild(live) for name, rebuild in changes}, late)
            for location, changes, late in self.items
        ]
        contents = [(location, rebuild(live)) for location, rebuild in self.contents]
        for location, values, late in items:
            container = _container_at(location, state)
            assert isinstance(container, NamedContainer)
            container.change(values, late)
        for location, values in contents:
            _container_at(location, state).fill(values)


def _container_at(location: Location, state: PythonState) -> Container:
    return containers_of(state.nodes[location.node])[location.part]


class StateTrace:
    """A trace of a function that may write to its state.

    Args:
        state: of the function.
        arrays: in place of the arrays of the state's tensors; None for those that are
            weights.
        shared: these, as of `weights_in_state`.
    """

    def __init__(
        self,
        state: PythonState,
        arrays: Sequence[jax.Array | None],
        shared: Sequence[tuple[int, WeightSlot]] = (),
    ) -> None:
        self._state = state
        self._arrays = list(arrays)
        self._shared = dict(shared)
        self._results: list[jax.Array] = []
        # By the id of the tensor.
        self._result_numbers: dict[int, int] = {}
        self._replaced: list[tuple[int | WeightSlot, int]] = []
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
        tensors = self._state.tensors
        attributes = [dict(vars(tensor)) for tensor in tensors]
        before: list[Snapshot] = []
        try:
            self._place_tensors(in_use)
            before += take_snapshots(self._state)
            self._before = before
            # Which refuses a number that is in a tuple.
            if self._state.numbers:
                place_numbers(self._state, before)
                self._before = [
                    Snapshot.of(location, container)
                    for location, container, *_ in before
                ]
            self._host_before = self._state.host_tensors.values()
            with self._state.host_tensors.restored(self._host_before):
                yield
        finally:
            for snapshot in before:
                snapshot.restore()
            for tensor, former in zip(tensors, attributes, strict=True):
                vars(tensor).clear()
                vars(tensor).update(former)

    def _place_tensors(self, in_use: Sequence[WeightsInUse]) -> None:
        """Give the tensors of the state their arrays."""
        pairs = zip(self._state.tensors, self._arrays, strict=True)
        for number, (tensor, array) in enumerate(pairs):
            if number not in self._shared:
                # Tensors that view one another are separate arguments, and writes to
                # one of them are refused.
                vars(tensor).update({ARRAY: array, "_alias": None})
                continue
            model, name = self._shared[number]
            show_weight(tensor, in_use[model].tensors[name])

    def find_changes(self) -> tuple[StateArrays, StateWrites | None]:
        """Traced, inside of `recorded`. What the function has changed.

        Raises:
            PortError: a value that cannot leave the program.
        """
        changes = self._find_writes()
        return StateArrays(self._find_tensor_writes(), self._results), changes

    def _find_tensor_writes(self) -> dict[int, jax.Array]:
        pairs = enumerate(zip(self._state.tensors, self._arrays, strict=True))
        return {
            number: compat.as_jax(tensor)
            for number, (tensor, array) in pairs
            # What is written to a weight, by whatever name, is among the writes to
            # weights.
            if number not in self._shared and compat.as_jax(tensor) is not array
        }

    def _find_writes(self) -> StateWrites | None:
        items, contents = [], []
        for snapshot in self._before:
            if snapshot.is_current():
                continue
            location, container, before, _ = snapshot
            path, after = self._state.path(location.node), container.read()
            if container.has_names:
                changes = tuple(self._changed_items(before, after, path, container))
                late = late_names(before, after)
                if changes or late:
                    items.append((location, changes, late))
            else:
                contents.append((location, self._encode_items(after, path)))
            self._note_replaced(
                [(old, after[name]) for name, old in before.items() if name in after]
            )
        host = self._state.host_tensors.find_writes(self._host_before)
        if not items and not contents and not host:
            return None
        return StateWrites(tuple(items), tuple(contents), tuple(self._replaced), host)

    def _note_replaced(self, pairs: list[tuple[Any, Any]]) -> None:
        """Note the tensors of the state, and weights, among what one container had and
        has, in the same places.
        """
        reused = {index for _, index in self._replaced}
        for old, new in pairs:
            index = self._result_numbers.get(id(new))
            if not isinstance(old, torch.Tensor) or index is None or index in reused:
                continue
            slot = self._slot_in_one_place(old)
            if slot is not None:
                self._replaced.append((slot, index))
                reused.add(index)

    def _slot_in_one_place(self, tensor: torch.Tensor) -> int | WeightSlot | None:
        """Which tensor of the state, or which weight, this is, if it was in one place
        only.
        """
        number = self._state.find_tensor(tensor)
        if number is not None:
            return number if self._state.has_one_place(number) else None
        slot = self._weight_slots.get(id(tensor))
        if slot is None:
            return None
        weights = (
            contents.values()
            for location, _, contents, _ in self._before
            if location.part in WEIGHTS
        )
        places = sum(
            weight is tensor for weight in itertools.chain.from_iterable(weights)
        )
        return slot if places == 1 else None

    def _changed_items(
        self, before: dict, after: dict, path: str, container: Container
    ) -> Iterator[_ItemChange]:
        # In the order of the code, as names that are new come behind all others.
        for name in before | after:
            old, new = before.get(name, ABSENT), after.get(name, ABSENT)
            if is_same(old, new):
                continue
            # `ABSENT` stays what it is, like any object that was not made while
            # tracing.
            rebuild = self._encode(new, container.path_of(path, name))
            slot = self._weight_slots.get(id(old))
            index = self._result_numbers.get(id(new))
            if slot is not None and index is not None and old.shape == new.shape:
                rebuild = _weight_like(slot, index, new)
            yield name, rebuild

    def _encode(self, value: Any, path: str) -> _Rebuild:
        """How to make a value again after a call."""
        value = of_this_trace(value)
        if type(value) is TracedNumber:
            return lambda live: settle(value, live.numbers)
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        node = self._state.node_numbers.get(id(value))
        # The caller's own object stays that object.
        if node is not None:
            return lambda live: live.state.nodes[node]
        if isinstance(value, PLAIN):
            return lambda live: value
        pytrees.register_used(value)
        match value:
            case dict() if type(value).__module__ in ("builtins", "collections"):
                return self._encode_dict(value, path)
            case types.MethodType():
                owner = self._encode(value.__self__, f"{path}.__self__")
                return lambda live: types.MethodType(value.__func__, owner(live))
            case functools.partial():
                fields = self._encode((value.func, value.args, value.keywords), path)
                return lambda live: _make_partial(*fields(live))
            case list() | tuple() | set() | frozenset() | deque():
                parts = [
                    self._encode(part, f"{path}[{index}]")
                    for index, part in enumerate(value)
                ]
                # A named tuple takes its fields one by one.
                make = getattr(type(value), "_make", type(value))
                return lambda live: make([part(live) for part in parts])
        # One level only: the parts may be objects of the state, which jax does not
        # know.
        leaves, tree = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
        if not (len(leaves) == 1 and leaves[0] is value):
            parts = [self._encode(leaf, path) for leaf in leaves]
            return lambda live: jax.tree.unflatten(tree, [part(live) for part in parts])
        return self._encode_object(value, path)

    def _encode_items(self, items: dict[Any, Any], path: str) -> _Rebuild:
        parts = {
            name: self._encode(part, f"{path}[{name!r}]")
            for name, part in items.items()
        }
        return lambda live: {name: part(live) for name, part in parts.items()}

    def _encode_dict(self, value: dict, path: str) -> _Rebuild:
        items = self._encode_items(value, path)
        # A copy has the class of the dictionary, and the factory of a defaultdict.
        empty = value.copy()
        empty.clear()

        def rebuild(live: _Live) -> dict:
            copy = empty.copy()
            copy.update(items(live))
            return copy

        return rebuild

    def _encode_object(self, value: Any, path: str) -> _Rebuild:
        """An object that was made while tracing. Its attributes are encoded, if there
        are tensors in it.
        """
        if not leads_to_traced(value):
            return lambda live: value
        attributes = getattr(value, "__dict__", None)
        if attributes is None or isinstance(
            value, types.FunctionType | torch.nn.Module
        ):
            self._refuse(path, f"a {type(value).__name__} with tensors in it")
        parts = {
            name: self._encode(part, f"{path}.{name}")
            for name, part in attributes.items()
        }
        cls: Any = type(value)

        def rebuild(live: _Live) -> Any:
            # Without __init__, whose arguments nobody knows, and which would compute
            # again.
            copy = cls.__new__(cls)
            vars(copy).update((name, part(live)) for name, part in parts.items())
            return copy

        return rebuild

    def _encode_tensor(self, tensor: torch.Tensor, path: str) -> _Rebuild:
        number = self._state.find_tensor(tensor)
        if number is not None:
            return lambda live: live.state.tensors[number]
        slot = self._weight_slots.get(id(tensor))
        if slot is not None:
            model, name = slot
            return lambda live: live.weights[model][name]
        if id(tensor) in self._result_numbers:
            index = self._result_numbers[id(tensor)]
            return lambda live: live.tensor(index)
        if not compat.is_ported(tensor):
            if is_transformed(tensor):
                self._refuse(path, "a tensor inside of a transformation of torch.func")
            return self._encode_host_tensor(tensor)
        array = compat.as_jax(tensor)
        try:
            # jax itself knows whether a value belongs to a trace that has ended.
            jnp.copy(array)
        except jax.errors.UnexpectedTracerError:
            self._refuse(
                path,
                "a tensor inside of a loop, a branch or a transformation that jax traces by itself",
            )
        index = len(self._results)
        self._results.append(array)
        self._result_numbers[id(tensor)] = index
        make = _tensor_maker(tensor)
        return lambda live: live.tensor(index, make)

    def _encode_host_tensor(self, tensor: torch.Tensor) -> _Rebuild:
        number = self._state.host_tensors.find(tensor)
        if number is not None:
            return lambda live: live.state.host_tensors.tensors[number]
        values = tensor if tensor.is_leaf else tensor.detach()
        return lambda live: live.copy(values)

    def _refuse(self, path: str, what: str) -> NoReturn:
        raise PortError(
            f"{path} is assigned {what}, which cannot leave the compiled program",
            where=assigning_line(self._state, path),
            fix="return it from the function, or assign it outside of what is compiled",
        )


def _make_partial(
    function: Callable, args: tuple, keywords: dict[str, Any]
) -> functools.partial:
    return functools.partial(function, *args, **keywords)


def _weight_like(slot: WeightSlot, index: int, new: torch.Tensor) -> _Rebuild:
    """How to make the tensor that a model has in place of a weight, with that weight's
    sharding.
    """
    model, name = slot
    make = _tensor_maker(new)

    def rebuild(live: _Live) -> torch.Tensor:
        former = live.weights[model][name]
        # With another sharding the next call would be compiled again.
        return live.tensor(index, lambda array: make(sharded_as(former, array)))

    return rebuild


def _tensor_maker(tensor: torch.Tensor) -> Callable[[jax.Array], torch.Tensor]:
    """How to make a tensor of an array: of this one's dtype, and a parameter if it
    is.
    """
    dtype, requires_grad = tensor.dtype, tensor.requires_grad
    if not isinstance(tensor, torch.nn.Parameter):
        return lambda array: compat.wrap(array, dtype)
    return lambda array: torch.nn.Parameter(compat.wrap(array, dtype), requires_grad)


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
