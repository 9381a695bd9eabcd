"""The walk over all that makes up a Python state: each object is described once, and
watched from then on.
"""

import inspect
import sys
import threading
import types
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tpuport import compat
from tpuport.internals.torchax_internals import ARRAY
from tpuport.libraries.library_classes import is_diffusers_class
from tpuport.objects.object_parts import PLAIN, PYTHONS_OWN, parts_of
from tpuport.objects.part_containers import (
    ABSENT,
    Attributes,
    Container,
    Contents,
    Dictionary,
    cell_contents,
)
from tpuport.objects.state import python_values
from tpuport.objects.state.host_tensors import HostTensors
from tpuport.objects.state.named_weights import TENSOR_DICTS
from tpuport.objects.state.python_values import Entry
from tpuport.objects.state.reachable import (
    ReachableModules,
    is_global,
    is_library,
    is_of_library,
    loaded_names,
    user_globals,
)
from tpuport.objects.state.watched_values import WatchedValues, lookup, watched_items
from tpuport.objects.static_values import Identity
from tpuport.objects.traced_numbers import LIMIT, Path

# torch registers hooks under numbers that it never uses twice.
_HOOKS = "_hooks"
# Files whose functions modules of every kind call.
_COMMON_FILES = ("torch.nn.functional",)

# The key of each part of an object by its label.
Keys = tuple[tuple[str, Hashable], ...]


class StateWalk:
    """Describes objects, and those that they lead to.

    Args:
        reachable: what code reads of objects.
        varying: paths of numbers that are arguments of the program.

    Attributes:
        nodes, node_numbers, tensors, host_tensors, numbers, varying: as of
            `PythonState`.
    """

    def __init__(
        self, reachable: ReachableModules, varying: frozenset[Path] = frozenset()
    ) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.host_tensors = HostTensors()
        self.numbers: dict[Path, tuple[int, int]] = {}
        self.varying = varying
        self.node_numbers: dict[int, int] = {}
        self._paths: list[str] = []
        self._entries: list[Entry] = []
        self._watched = WatchedValues()
        self._tensor_numbers: dict[int, int] = {}
        self._loads = reachable.attributes
        self._loads_any = reachable.reads_any_attribute
        self._classes: dict[type, None] = {}
        self._files: dict[str, None] = {}

    def _walk(self, roots: Iterable[Any]) -> None:
        for root in roots:
            self._key_of(root, "")
        # To describe an object appends the objects that it leads to.
        while len(self._entries) < len(self.nodes):
            self._entries.append(self._describe_node(len(self._entries)))
        self._watched.owner = None

    def _describe_node(self, number: int) -> Entry:
        self._watched.owner = number
        return self._describe(self.nodes[number], self._paths[number])

    def _class_entries(self) -> Iterator[Entry]:
        """The libraries' classes of the objects, and the files that these are defined
        in.
        """
        for cls in self._classes:
            self._watched.add_names(vars(cls))
            yield Entry(Identity(cls), others=python_values.namespace_key(vars(cls)))
        for file in self._files:
            names = vars(sys.modules[file])
            self._watched.add_names(names)
            yield Entry(file, others=python_values.namespace_key(names))

    def _key_of(self, value: Any, path: str) -> Hashable:
        """The key of a value; for an object with parts its number, and `_walk`
        describes it later.
        """
        if value is ABSENT:
            # An attribute that appears later makes another program.
            return "absent"
        if isinstance(value, PLAIN):
            return python_values.value_key(value)
        if isinstance(value, torch.Tensor):
            return self._tensor_key(value)
        number = self.node_numbers.get(id(value))
        if number is not None:
            return number
        if python_values.is_opaque(value):
            return self._opaque_key(value)
        self.node_numbers[id(value)] = len(self.nodes)
        self.nodes.append(value)
        self._paths.append(path)
        return len(self.nodes) - 1

    def _tensor_key(self, tensor: torch.Tensor) -> Hashable:
        if not compat.is_ported(tensor):
            version = self._watched.add_host_tensor(tensor)
            return self.host_tensors.key_of(tensor, version)
        # A view of torchax's own computes its array.
        if not hasattr(tensor, ARRAY):
            return Identity(tensor)
        number = self._tensor_numbers.setdefault(id(tensor), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
        return "tensor", number

    def _opaque_key(self, value: Any) -> Hashable:
        if isinstance(value, np.ndarray):
            self._watched.add_array(value)
        return python_values.value_key(value)

    def _describe(self, value: Any, path: str) -> Entry:
        match value:
            case type():
                return self._describe_class(value, path)
            case torch.nn.Module():
                return self._describe_module(value, path)
            case types.FunctionType():
                return self._describe_function(value, path)
            case threading.local():
                # Each thread has attributes of its own.
                self._watched.add_lookup(lambda: watched_items(vars(value)))
                attributes = Attributes(vars(value))
                return Entry(
                    "variable", self._keys_in(attributes, attributes.read(), path)
                )
        return self._describe_object(value, path)

    def _keys_of(self, parts: Mapping[str, Any], path: str) -> Keys:
        """The key of each part by its label."""
        return tuple(
            (label, self._number_key(part, f"{path}{label}"))
            if self.varying and type(part) is int
            else (label, self._key_of(part, f"{path}{label}"))
            for label, part in parts.items()
        )

    def _number_key(self, value: int, path: str) -> Hashable:
        """The key of an int of the object that is described."""
        place = ("state", path)
        is_new = place in self.varying and place not in self.numbers
        if not is_new or abs(value) >= LIMIT:
            return self._key_of(value, path)
        assert self._watched.owner is not None
        self.numbers[place] = (self._watched.owner, value)
        return "number", path

    def _keys_in(self, container: Container, contents: Contents, path: str) -> Keys:
        """As `_keys_of`, of what is in a container."""
        parts = {container.label(name): part for name, part in contents.items()}
        return self._keys_of(parts, path)

    def _contents_in_key(self, container: Container) -> Contents:
        contents = container.read()
        if isinstance(container, Dictionary) and is_diffusers_class(
            type(container.items)
        ):
            # Unless the user's code reads them.
            for name in python_values.ITEMS_NOTED_WHEN_SAVED - self._loads:
                contents.pop(name, None)
        return contents

    def _describe_module(self, module: torch.nn.Module, path: str) -> Entry:
        classes = self._add_class(type(module))
        self._watched.add_instance(module)
        attributes = vars(module)
        self._watched.add_dictionary(attributes)
        dot = "." if path else ""
        has_hooks = any(
            value for name, value in attributes.items() if name.endswith(_HOOKS)
        )
        parts: list[tuple[str, Hashable]] = []
        others: list[Hashable] = [classes]
        for name in sorted(attributes.keys() - python_values.IGNORED_ATTRIBUTES):
            value = attributes[name]
            if name == "_modules":
                self._watched.add_dictionary(value)
                parts += self._keys_of(
                    {f"{dot}{child}": part for child, part in value.items()}, path
                )
                others.append(tuple(value))
            elif name in TENSOR_DICTS:
                # Other weights are no other state.
                self._watched.add_keys(value)
                others.append(tuple(value))
                # Unless they stay on the host, as sparse tensors do.
                others += [
                    self._tensor_key(tensor)
                    for tensor in value.values()
                    if tensor is not None and not compat.has_array_form(tensor)
                ]
            elif name.endswith(_HOOKS) and isinstance(value, dict):
                hooks = self._describe_hooks(value, attributes, f"{path}{dot}{name}")
                others.append((name, hooks))
            elif f"{_HOOKS}_" in name and isinstance(value, dict):
                # The options of hooks, which are described with them: without hooks
                # there is nothing to watch.
                if has_hooks:
                    self._watched.add_dictionary(value)
            else:
                parts += self._keys_of({f"{dot}{name}": value}, path)
        return Entry(Identity(type(module)), tuple(parts), tuple(others))

    def _describe_hooks(
        self, hooks: dict, attributes: dict[str, Any], path: str
    ) -> Hashable:
        """Hooks in their order, each with its options, without the numbers that they
        were registered under.
        """
        self._watched.add_dictionary(hooks)
        if not hooks:
            return ()
        options = [
            value
            for name, value in sorted(attributes.items())
            if f"{_HOOKS}_" in name and isinstance(value, dict)
        ]
        return tuple(
            (
                self._key_of(hook, f"{path}[{index}]"),
                *(number in option for option in options),
            )
            for index, (number, hook) in enumerate(hooks.items())
            if getattr(hook, "__module__", None) != python_values.IGNORED_HOOKS
        )

    def _describe_function(self, function: types.FunctionType, path: str) -> Entry:
        code = function.__code__
        self._watched.add_lookup(
            lambda: (function.__code__, function.__defaults__, function.__kwdefaults__)
        )
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        # Variables have their own names in messages, wherever their function was found.
        parts = self._keys_of(cells, "")
        attributes = Attributes(vars(function))
        self._watched.add_container(attributes)
        parts += self._keys_in(attributes, attributes.read(), path)
        defaults = (function.__defaults__, function.__kwdefaults__)
        others = tuple(self._key_of(default, path) for default in defaults)
        names = user_globals(function)
        chains = sorted(loaded_names(code).chains)
        loads = dict.fromkeys(
            name for name, *_ in chains if name not in cells and is_global(name, names)
        )
        if loads:
            self._watched.add_lookup(lookup(names.get, tuple(loads)))
            values = {name: names.get(name, ABSENT) for name in loads}
            parts += self._keys_of(values, "")
        for first, *attributes in chains:
            value = cell_contents(cells[first]) if first in cells else names.get(first)
            parts += self._follow_file(value, attributes, first)
        return Entry(code, parts, others)

    def _follow_file(self, value: Any, attributes: list[str], path: str) -> Keys:
        """What code takes from an imported file: `helpers.scale`."""
        keys = []
        for name in attributes:
            if not isinstance(value, types.ModuleType) or is_library(value.__name__):
                break
            self._watched.add_lookup(lookup(vars(value).get, (name,)))
            value, path = vars(value).get(name, ABSENT), f"{path}.{name}"
            keys.append((path, self._key_of(value, path)))
        return tuple(keys)

    def _describe_object(self, value: Any, path: str) -> Entry:
        cls = type(value)
        parts = parts_of(value)
        keys: Keys = ()
        names: Hashable = None
        if not isinstance(value, PYTHONS_OWN) or not is_library(cls.__module__):
            self._watched.add_instance(value)
            # What a compiled function, or a cached one, runs.
            wrapped = inspect.getattr_static(value, "__wrapped__", None)
            keys = self._keys_of({"": wrapped} if callable(wrapped) else {}, path)
        if cls.__module__.partition(".")[0] == "tpuport":
            # Nothing else of tpuport's is the user's to change.
            return Entry(Identity(cls), keys)
        attributes = parts.pop("", None)
        if isinstance(attributes, Attributes):
            keys += self._describe_attributes(value, attributes, path)
        for container in parts.values():
            self._watched.add_container(container)
            contents = self._contents_in_key(container)
            keys += self._keys_in(container, contents, path)
            if isinstance(container, Dictionary):
                names = tuple(map(python_values.value_key, contents))
        others = () if is_library(cls.__module__) else self._add_class(cls)
        return Entry(Identity(cls), keys, (others, names))

    def _describe_attributes(
        self, value: Any, attributes: Attributes, path: str
    ) -> Keys:
        names = self._read_names(value, attributes.items)
        self._watched.add_attributes(attributes.items, names)
        contents = {name: attributes.items.get(name, ABSENT) for name in names}
        return self._keys_in(attributes, contents, path)

    def _read_names(self, value: Any, attributes: Mapping[str, Any]) -> list[str]:
        """The attributes of an object that traced code may read, present or not."""
        names = sorted(name for name in attributes if isinstance(name, str))
        if hasattr(type(value), "to_dict"):
            # Private names are transformers' own state, which it and tpuport set and
            # reset while a model runs.
            names = [
                name
                for name in names
                if not name.startswith("_") and name != python_values.NOTED_WHEN_SAVED
            ]
        elif not (self._loads_any or is_of_library(type(value))):
            return sorted(self._loads)
        self._watched.add_size(attributes)
        return names

    def _add_class(self, cls: type) -> tuple[Hashable, ...]:
        """Note a class and its bases; the keys of those that are the user's."""
        keys = []
        for base in cls.__mro__:
            home = base.__module__
            if home in python_values.PYTHONS_MODULES:
                continue
            if not is_library(home):
                keys.append(self._key_of(base, base.__qualname__))
            elif base not in self._classes:
                self._classes[base] = None
                self._files |= {
                    file: None for file in (home, *_COMMON_FILES) if file in sys.modules
                }
        return tuple(keys)

    def _describe_class(self, cls: type, path: str) -> Entry:
        """A class of the user's: its methods by identity, as `reachable.functions`
        leads into them, and its values.
        """
        self._watched.add_names(vars(cls))
        values = {
            f".{name}": value for name, value in list(vars(cls).items())
            if not (
                name.startswith("__") or name in python_values.IGNORED_ATTRIBUTES
                or callable(value) or isinstance(value, python_values.METHODS)
            )
        }  # fmt: skip
        names = python_values.namespace_key(vars(cls))
        return Entry(Identity(cls), self._keys_of(values, path), names)
