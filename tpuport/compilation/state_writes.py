"""What traced code assigns to attributes, items and variables: results of the program, assigned after each call.

While a function is traced the tensors that it computes have no values. What it leaves in its models, in lists and
dictionaries, and in variables is taken out of them again when the trace ends. The tensors in it become results of the
program, and after every call of the program each place gets what the function left there, as in torch.
"""

import contextlib
import dataclasses
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]

from tpuport import compat, pytrees
from tpuport.compilation.python_state import PythonState
from tpuport.compilation.python_values import PLAIN
from tpuport.compilation.reachable import ABSENT
from tpuport.compilation.state_places import (
    WEIGHTS,
    Globals,
    Location,
    are_same_plain,
    assigning_line,
    containers_of,
    is_unchanged,
    item_path,
    leads_to_traced,
    read_contents,
    refill,
    take_snapshots,
)
from tpuport.errors import PortError


class _Live(NamedTuple):
    """What values are rebuilt from after a call: the caller's state, and the arrays that the program returned."""

    state: PythonState
    arrays: Sequence[jax.Array]


_Rebuild = Callable[[_Live], Any]
# The name of an item, and how to make its value; None if the item is gone.
_ItemChange = tuple[Any, _Rebuild | None]


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
    """What a program assigns, without the arrays. It equals itself alone: it belongs to one program.

    Attributes:
        items: the changed items of each dictionary.
        contents: how to make the new contents of each list, set and variable.
        replaced: (number of a tensor of the state, number of the array that has its place now), for tensors that are
            in one place only.
    """

    items: tuple[tuple[Location, tuple[_ItemChange, ...]], ...]
    contents: tuple[tuple[Location, _Rebuild], ...]
    replaced: tuple[tuple[int, int], ...]

    def apply(self, state: PythonState, arrays: Sequence[jax.Array]) -> None:
        """Assign what the program left, with the arrays that it returned."""
        live = _Live(state, arrays)
        for location, changes in self.items:
            items = containers_of(state.nodes[location.node])[location.part]
            items = items.all if isinstance(items, Globals) else items
            for name, rebuild in changes:
                if rebuild is None:
                    items.pop(name, None)
                else:
                    items[name] = rebuild(live)
        for location, rebuild in self.contents:
            refill(containers_of(state.nodes[location.node])[location.part], rebuild(live))


class StateTrace:
    """A trace of a function that may write to its state.

    Args:
        state: of the function.
        arrays: in place of the arrays of the state's tensors.
    """

    def __init__(self, state: PythonState, arrays: Sequence[jax.Array]) -> None:
        self._state = state
        self._arrays = list(arrays)
        self._results: list[jax.Array] = []
        # By the id of the tensor.
        self._result_numbers: dict[int, int] = {}
        self._replaced: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Traced. Let the state be as it was when the block ends; what the block changed is for `find_changes`."""
        tensors = self._state.tensors
        attributes = [dict(vars(tensor)) for tensor in tensors]
        for tensor, array in zip(tensors, self._arrays, strict=True):
            # Tensors that view one another are separate arguments, and writes to one of them are refused.
            vars(tensor).update(_elem=array, _alias=None)
        self._before = take_snapshots(self._state)
        try:
            yield
        finally:
            for _, container, contents in self._before:
                if not is_unchanged(container, contents):
                    refill(container, contents)
            for tensor, former in zip(tensors, attributes, strict=True):
                vars(tensor).clear()
                vars(tensor).update(former)

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
            if compat.as_jax(tensor) is not array
        }

    def _find_writes(self) -> StateWrites | None:
        items, contents = [], []
        for location, container, before in self._before:
            if is_unchanged(container, before):
                continue
            path, after = self._state.path(location.node), read_contents(container)
            if isinstance(before, dict):
                changes = tuple(self._changed_items(before, after, path, location))
                if changes:
                    items.append((location, changes))
                pairs = [(old, after[name]) for name, old in before.items() if name in after]
            else:
                contents.append((location, self._encode(after, path)))
                pairs = list(zip(before, after, strict=False))
            self._note_replaced(pairs)
        if not items and not contents:
            return None
        return StateWrites(tuple(items), tuple(contents), tuple(self._replaced))

    def _note_replaced(self, pairs: list[tuple[Any, Any]]) -> None:
        """Note the tensors of the state among what one container had and has, in the same places."""
        for old, new in pairs:
            number = None
            if isinstance(old, torch.Tensor):
                number = self._state.find_tensor(old)
            if number is None or id(new) not in self._result_numbers:
                continue
            if self._state.has_one_place(number):
                self._replaced.append((number, self._result_numbers[id(new)]))

    def _changed_items(
        self, before: dict, after: dict, path: str, location: Location
    ) -> Iterator[_ItemChange]:
        for name in before.keys() | after.keys():
            old, new = before.get(name, ABSENT), after.get(name, ABSENT)
            # Weights that are there already are arguments and results of their own.
            is_weight = location.part in WEIGHTS and ABSENT not in (old, new)
            if is_weight or old is new or are_same_plain(old, new):
                continue
            yield name, None if new is ABSENT else self._encode(new, item_path(path, location.part, name))

    def _encode(self, value: Any, path: str) -> _Rebuild:
        """How to make a value again after a call."""
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        node = self._state.find_node(value)
        # The caller's own object stays that object.
        if node is not None:
            return lambda live: live.state.nodes[node]
        if isinstance(value, PLAIN):
            return lambda live: value
        pytrees.register_used(value)
        match value:
            case dict() if type(value).__module__ in ("builtins", "collections"):
                return self._encode_dict(value, path)
            case list() | tuple() | set() | frozenset() | deque():
                parts = [self._encode(part, f"{path}[{index}]") for index, part in enumerate(value)]
                # A named tuple takes its fields one by one.
                make = getattr(type(value), "_make", type(value))
                return lambda live: make([part(live) for part in parts])
        # One level only: the parts may be objects of the state, which jax does not know.
        leaves, tree = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
        if not (len(leaves) == 1 and leaves[0] is value):
            parts = [self._encode(leaf, path) for leaf in leaves]
            return lambda live: jax.tree.unflatten(tree, [part(live) for part in parts])
        return self._encode_object(value, path)

    def _encode_dict(self, value: dict, path: str) -> _Rebuild:
        parts = {name: self._encode(part, f"{path}[{name!r}]") for name, part in value.items()}
        # A copy has the class of the dictionary, and the factory of a defaultdict.
        empty = value.copy()
        empty.clear()

        def rebuild(live: _Live) -> dict:
            copy = empty.copy()
            copy.update((name, part(live)) for name, part in parts.items())
            return copy

        return rebuild

    def _encode_object(self, value: Any, path: str) -> _Rebuild:
        """An object that was made while tracing. Its attributes are encoded, if there are tensors in it."""
        if not leads_to_traced(value, set()):
            return lambda live: value
        attributes = getattr(value, "__dict__", None)
        if attributes is None or isinstance(value, types.FunctionType | torch.nn.Module):
            self._refuse(path, f"a {type(value).__name__} with tensors in it")
        parts = {name: self._encode(part, f"{path}.{name}") for name, part in attributes.items()}
        cls: Any = type(value)

        def rebuild(live: _Live) -> Any:
            # Without __init__, whose arguments nobody knows, and which would compute again.
            copy = cls.__new__(cls)
            vars(copy).update((name, part(live)) for name, part in parts.items())
            return copy

        return rebuild

    def _encode_tensor(self, tensor: torch.Tensor, path: str) -> _Rebuild:
        number = self._state.find_tensor(tensor)
        if number is not None:
            return lambda live: live.state.tensors[number]
        if not compat.is_ported(tensor):
            if functorch.is_functorch_wrapped_tensor(tensor):
                self._refuse(path, "a tensor inside of a transformation of torch.func")
            return lambda live: tensor
        array = compat.as_jax(tensor)
        try:
            # jax itself knows whether a value belongs to a trace that has ended.
            jnp.copy(array)
        except jax.errors.UnexpectedTracerError:
            self._refuse(
                path, "a tensor inside of a loop, a branch or a transformation that jax traces by itself"
            )
        index = len(self._results)
        self._results.append(array)
        self._result_numbers[id(tensor)] = index
        return lambda live: compat.wrap(live.arrays[index])

    def _refuse(self, path: str, what: str) -> NoReturn:
        raise PortError(
            f"{path} is assigned {what}, which cannot leave the compiled program",
            where=assigning_line(self._state, path),
            fix="return it from the function, or assign it outside of what is compiled",
        )


def check_leaks(state: PythonState) -> None:
    """PortError if a value of a trace that has ended is still in a state, where nothing can give it a value."""
    for path, tensor in state.tensor_paths():
        if isinstance(compat.as_jax(tensor), Tracer):
            raise PortError(
                f"{path} is assigned a tensor in a way that cannot leave the compiled program",
                where=assigning_line(state, path),
                fix="return it from the function; in a module, assign it with self.name = x or self.list.append(x)",
            )
