"""The Python state that a program is made for: all that traced code could read beside
its arguments and weights.

The rule: whatever a compiled function reaches is either an argument of its program or a
part of the program's key. The arguments are the weights of its modules, and every other
tensor on the device, whatever refers to it. The key has the rest: attributes, hooks and
classes of modules, containers, objects, configurations, variables of closures, globals
of the user's functions, functions of the files that modules are defined in, tensors on
the host by their values, and torch's own settings. So a change is seen by the
next call, whatever it was.

To compute the key takes milliseconds. It is kept as long as nothing has changed, which
`is_current` finds out by comparing references, a few hundred microseconds for a
language model.

Of the user's own objects only those attributes count that the code names. What cannot
be seen: the inside of objects of C extensions, and what code asks of the system, such
as files, the time and environment variables.
"""

import copy
import itertools
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

from tpuport import compat
from tpuport.internals.torchax_internals import ARRAY
from tpuport.objects.state.named_weights import NamedWeights
from tpuport.objects.state.python_values import Entry, StateKey
from tpuport.objects.state.reachable import ReachableModules, is_library
from tpuport.objects.state.state_walk import StateWalk
from tpuport.objects.state.watched_values import Change, WatchedValues
from tpuport.objects.traced_numbers import Path


class Shared(NamedTuple):
    """What a call gives and its function also reaches by itself: the number of an
    object, or of a tensor, of the state.
    """

    kind: Literal["object", "tensor"]
    number: int


class PythonState(StateWalk):
    """The Python state of a function, or of a model, at one moment.

    Args:
        function: what is compiled.
        modules: the ported models that it uses; None to look for them.
        start: the function itself, if `function` is a method of an argument.
        code: functions that the arguments lead to, and classes of theirs.
        varying: paths of numbers that are arguments of the program.

    Attributes:
        modules: what the function reaches, as `ReachableModules` says; weights of these
            are arguments.
        key: of the state.
        nodes: the objects that make up the state, in the order of the key; by id,
            `node_numbers` are their numbers.
        tensors: on the device, that are not weights; arguments of the program beside
            these.
        host_tensors: on the host.
        kept: what others keep as long as the state, by keys of their own.
        numbers: by path, those that are arguments of the program: the number of the
            object that has it, and the value.
    """

    def __init__(
        self,
        function: Callable,
        modules: Iterable[torch.nn.Module] | None = None,
        *,
        start: Callable | None = None,
        code: Iterable[Any] = (),
        varying: frozenset[Path] = frozenset(),
    ) -> None:
        reachable = ReachableModules(function, code)
        super().__init__(reachable, varying)
        self.modules = reachable.modules if modules is None else list(modules)
        self.kept: dict[Any, Any] = {}
        self._named_weights = NamedWeights()
        self._walk([start or function, *reachable.functions, *self.modules, *code])
        # Their arrays do not tell int32 from int64.
        are_int32 = tuple(tensor.dtype is torch.int32 for tensor in self.tensors)
        entries = (
            *self._entries,
            *self._class_entries(),
            Entry("settings", others=self._watched.settings),
            Entry("int32", others=are_int32),
        )
        self.key = StateKey(entries, tuple(self._paths), self)
        self._watched.remember()

    def is_current(self) -> bool:
        """Whether nothing has changed."""
        return self._watched.are_same()

    @property
    def version(self) -> object:
        """Another object after each change of a dictionary that is watched, were it of
        weights, which are no part of the state.
        """
        return self._watched.version

    def renewed(self) -> "PythonState | None":
        """The state of the same key with the tensors and varying numbers that are there
        now; None if anything else has changed.

        Code that keeps a state replaces tensors in each call, and the walk takes
        milliseconds.
        """
        changes = self._watched.changes()
        if changes is None:
            return None
        tensors = self._tensors_after(changes)
        if tensors is None:
            return None
        renewed = copy.copy(self)
        renewed.tensors, renewed.kept = tensors, {}
        renewed._tensor_numbers = {id(tensor): n for n, tensor in enumerate(tensors)}
        renewed.nodes, renewed._paths = list(self.nodes), list(self._paths)
        renewed.node_numbers = dict(self.node_numbers)
        # Tensors that have all places of others have their part of the key, too.
        changed = {
            change.owner
            for change in changes
            if id(change.old) not in self._tensor_numbers
        }
        renewed.numbers = {
            path: place
            for path, place in self.numbers.items()
            if place[0] not in changed
        }
        # What is described again is watched already, but for an array in the place of
        # an equal one.
        renewed._watched = WatchedValues()
        for number in changed:
            if (
                number is None
                or renewed._describe_node(number) != self._entries[number]
            ):
                return None
        if (
            len(renewed.nodes) > len(self.nodes)
            or len(renewed.tensors) > len(tensors)
            or renewed._watched.has_contents
        ):
            return None
        renewed._watched = self._watched.with_changes(changes)
        renewed.key = self.key.of_state(renewed)
        return renewed

    def _tensors_after(self, changes: Sequence[Change]) -> list[torch.Tensor] | None:
        """`tensors` after changes of places; None if a tensor has another dtype, or
        other places than the one that it replaces.
        """
        tensors = list(self.tensors)
        places = Counter(map(id, self._watched.values))
        replacements: dict[int, list[Any]] = {}
        for change in changes:
            number = self._tensor_numbers.get(id(change.old))
            if number is not None:
                replacements.setdefault(number, []).append(change.new)
        for number, (new, *others) in replacements.items():
            old = tensors[number]
            if (
                places[id(old)] != 1 + len(others)
                or any(other is not new for other in others)
                or not isinstance(new, torch.Tensor)
                or not compat.is_ported(new)
                # A view of torchax's own, which the walk takes by its identity.
                or not hasattr(new, ARRAY)
                or (new.dtype is torch.int32) != (old.dtype is torch.int32)
            ):
                return None
            tensors[number] = new
        return tensors if len(set(map(id, tensors))) == len(tensors) else None

    def path(self, number: int) -> str:
        """What leads to an object: "layers.0.attention"."""
        return self._paths[number]

    def shared_with(self, values: Iterable[Any]) -> dict[int, Shared]:
        """By id, those of these values that are objects or tensors of the state."""
        shared: dict[int, Shared] = {}
        for value in values:
            node = self.node_numbers.get(id(value))
            tensor = self._tensor_numbers.get(id(value))
            if tensor is not None:
                shared[id(value)] = Shared("tensor", tensor)
            # A call that gives an argument does not use the default of its parameter,
            # whose path has no name.
            elif node is not None and not self._paths[node].startswith("["):
                shared[id(value)] = Shared("object", node)
        return shared

    def value_of(self, shared: Shared) -> Any:
        """The object or the tensor."""
        values = self.nodes if shared.kind == "object" else self.tensors
        return values[shared.number]

    def plain_numbers(self) -> dict[Path, int]:
        """The numbers that may vary, by path."""
        pairs = zip(self._paths, self._entries, strict=True)
        parts = ((path, part) for path, entry in pairs for part in entry.parts)
        return {
            ("state", f"{path}{label}"): key[1]
            for path, (label, key) in parts
            if isinstance(key, tuple) and key[0] is int
        }

    def find_tensor(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor among `tensors`."""
        return self._tensor_numbers.get(id(tensor))

    def has_array(self, array: Any) -> bool:
        """Whether an array of NumPy is a part of the state."""
        return self._watched.has_array(array)

    def has_one_place(self, number: int) -> bool:
        """Whether a tensor of `tensors` is in one place of one object only."""
        parts = itertools.chain.from_iterable(entry.parts for entry in self._entries)
        return sum(key == ("tensor", number) for _, key in parts) == 1

    def count_references(self) -> Counter[int]:
        """How many references this object has to each value, by its id."""
        return Counter(map(id, self._watched.values)) + Counter(map(id, self.tensors))

    def tensor_paths(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors on the device, by where they are."""
        for path, entry in zip(self._paths, self._entries, strict=True):
            for label, key in entry.parts:
                match key:
                    case ("tensor", int(number)):
                        yield f"{path}{label}", self.tensors[number]

    def located_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """As `tensors`, each with a place where it is."""
        if not self.tensors:
            return []
        paths = {id(tensor): path for path, tensor in self.tensor_paths()}
        return [(paths.get(id(tensor), "a hook"), tensor) for tensor in self.tensors]

    def functions(self) -> Iterator[types.FunctionType]:
        """The functions and methods whose code may run, the user's before those of
        libraries.
        """
        classes = itertools.chain(
            self._classes, (node for node in self.nodes if isinstance(node, type))
        )
        methods = itertools.chain.from_iterable(vars(cls).values() for cls in classes)
        everything = itertools.chain(self.nodes, methods)
        functions = dict.fromkeys(
            value for value in everything if isinstance(value, types.FunctionType)
        )
        return iter(sorted(functions, key=lambda f: is_library(f.__module__ or "")))

    def weight_places(
        self, module: torch.nn.Module
    ) -> dict[str, tuple[dict[str, Any], str]]:
        """Where each of these is: a dictionary of a module, and the name there."""
        return self._named_weights.places(module)

    def named_weights(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The parameters and buffers of one of `modules` now, as torch names them."""
        return self._named_weights.of(module)
