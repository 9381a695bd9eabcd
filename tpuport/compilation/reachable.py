"""What a function reaches without being given it: the modules whose weights must be arguments of its program.

Followed are closures, the globals that code really loads (and attributes of imported files), the functions named
there, bound objects, arguments of partials, defaults, and the contents of containers and of plain objects. A module
that is reached in another way (`getattr`, an import inside the function) is not seen here.
"""

import builtins
import dis
import functools
import inspect
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from tpuport import compat

# How deep containers and objects inside of one another are searched, and how many values are looked at in all.
_MAX_DEPTH = 6
_MAX_VALUES = 20_000
# The globals of these packages' functions are their own affair: no model of a user is among them.
_LIBRARIES = frozenset(sys.stdlib_module_names - {"__main__"}) | frozenset(
    "torch torchvision torchaudio torchax jax jaxlib flax optax numpy scipy transformers diffusers accelerate einops "
    "safetensors tokenizers huggingface_hub tqdm beartype jaxtyping tpuport pytest".split()
)
# Of the standard library's objects only these lead to what a user gave them; a logger or a thread leads everywhere.
_OPAQUE_HOMES = sys.stdlib_module_names - {"functools", "types", "collections", "__main__"}
# Values that lead to no other value.
_LEAVES = (
    str, bytes, int, float, complex, types.NoneType, type, types.BuiltinFunctionType, torch.Tensor, torch.dtype,
    torch.device, jax.Array, np.ndarray, np.generic,
)  # fmt: skip
_ABSENT = object()
_LOADS_NAME = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"})
_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


class _LoadedNames(NamedTuple):
    """What code loads from outside of itself.

    Attributes:
        chains: names, each with the attributes that are taken of it at once: ("helpers", "step").
        attributes: all attributes, of whatever value.
    """

    chains: frozenset[tuple[str, ...]]
    attributes: frozenset[str]


class _Task(NamedTuple):
    """A value to look at; `is_named` if the compiled function itself names it."""

    value: Any
    depth: int
    is_named: bool


class ReachableModules:
    """The modules that a function reaches at the moment.

    Attributes:
        modules: each once. Those that only a container, an object or another function leads to are among them if
            they are on the device: the function may never use them.
    """

    def __init__(self, function: Callable) -> None:
        self._named: dict[torch.nn.Module, None] = {}
        self._others: dict[torch.nn.Module, None] = {}
        # What was read, for `is_current`: (getter, value) and (container, length).
        self._read: list[tuple[Callable[[], Any], Any]] = []
        self._lengths: list[tuple[Any, int]] = []
        # By id, with the value itself, so that no other value gets its id.
        self._seen: dict[int, Any] = {}
        self._owners: dict[type, None] = {}
        self._attributes: set[str] = set()
        self._tasks: deque[_Task] = deque()
        self._follow(function)
        on_device = {module: None for module in self._others if _is_on_device(module)}
        self.modules: list[torch.nn.Module] = list(self._named | on_device)
        self._seen.clear()

    def is_current(self) -> bool:
        """Whether the names, items and attributes that were followed still have the same values."""
        same_lengths = all(len(container) == length for container, length in self._lengths)
        return same_lengths and all(get() is value for get, value in self._read)

    def _follow(self, function: Callable) -> None:
        self._tasks.append(_Task(function, 0, is_named=True))
        followed: set[tuple[type, str]] = set()
        while self._tasks:
            self._visit(self._tasks.popleft())
            if self._tasks:
                continue
            # A method is known by its name alone, so every class that was met may be the one whose method is called.
            methods = set(itertools.product(self._owners, self._attributes)) - followed
            followed |= methods
            for cls, name in methods:
                self._add_method(cls, name)

    def _visit(self, task: _Task) -> None:
        value, depth, is_named = task
        if is_named and isinstance(value, torch.nn.Module):
            self._named[value] = None
        is_seen = id(value) in self._seen
        is_too_far = len(self._seen) > _MAX_VALUES or depth > _MAX_DEPTH
        if isinstance(value, _LEAVES) or is_seen or is_too_far:
            return
        self._seen[id(value)] = value
        match value:
            case torch.nn.Module():
                self._visit_module(value, depth)
            case functools.partial():
                parts = (value.func, *value.args, *value.keywords.values())
                self._tasks.extend(_Task(part, depth, is_named) for part in parts)
            case types.MethodType():
                parts = (value.__self__, value.__func__)
                self._tasks.extend(_Task(part, depth, is_named) for part in parts)
            case types.FunctionType():
                self._visit_function(value, depth, is_named)
            case dict() | list() | tuple() | set() | frozenset():
                self._visit_container(value, depth)
            case types.ModuleType():
                pass  # what code takes from a file is followed by its name
            case _:
                self._visit_object(value, depth)

    def _visit_function(self, function: types.FunctionType, depth: int, is_named: bool) -> None:
        code = function.__code__
        loaded = _loaded_names(code)
        self._attributes |= loaded.attributes
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for cell in cells.values():
            self._read_slot(functools.partial(_cell_contents, cell), depth, is_named)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._tasks.extend(_Task(default, depth, is_named) for default in defaults)
        names = _user_globals(function)
        for first, *attributes in loaded.chains:
            if first in cells:
                self._follow_file(_cell_contents(cells[first]), attributes, depth, is_named)
            elif _is_global(first, names):
                value = names.get(first)
                # A function named here may mention models that it never uses; the compiled function uses its own.
                is_own_model = is_named and isinstance(value, torch.nn.Module)
                self._read_slot(functools.partial(names.get, first, _ABSENT), depth, is_own_model)
                self._follow_file(value, attributes, depth, is_named)

    def _follow_file(self, value: Any, attributes: list[str], depth: int, is_named: bool) -> None:
        """What code takes from an imported file: `helpers.step` names a function as `step` does."""
        for name in attributes:
            if not isinstance(value, types.ModuleType):
                return
            get = functools.partial(vars(value).get, name, _ABSENT)
            value = get()
            self._read_slot(get, depth, is_named)

    def _read_slot(self, get: Callable[[], Any], depth: int, is_named: bool = False) -> None:
        """Visit the value of a name, an item or an attribute, and remember it."""
        value = get()
        self._read.append((get, value))
        if value is not _ABSENT:
            self._tasks.append(_Task(value, depth, is_named))

    def _visit_container(self, value: Any, depth: int) -> None:
        self._lengths.append((value, len(value)))
        match value:
            case dict():
                self._read_members((functools.partial(dict.get, value, key, _ABSENT) for key in value), depth)
            case list():
                indices = range(len(value))
                self._read_members((functools.partial(_item, value, index) for index in indices), depth)
            case _:
                self._tasks.extend(_Task(item, depth + 1, is_named=False) for item in value)

    def _read_members(self, getters: Iterator[Callable[[], Any]], depth: int) -> None:
        """Visit members. Plain values, of which there may be many, are not remembered, but None may become a model."""
        for get in getters:
            value = get()
            if value is None or not isinstance(value, _LEAVES):
                self._read_slot(get, depth + 1)

    def _visit_object(self, value: Any, depth: int) -> None:
        cls = type(value)
        home = cls.__module__.partition(".")[0]
        if home in _OPAQUE_HOMES:
            return
        if not _is_library(home):
            self._owners[cls] = None
        self._add_method(cls, "__call__")
        # functools.cache and its like keep the function that they wrap.
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        self._tasks.append(_Task(wrapped, depth, is_named=False))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._read_attributes(attributes, list(attributes), depth)
        self._read_members((functools.partial(getattr, value, name, None) for name in _slots(cls)), depth)

    def _visit_module(self, module: torch.nn.Module, depth: int) -> None:
        """Note a module, and look in the user's own classes for modules that are not registered as parts of it."""
        self._others[module] = None
        for part in module.modules():
            cls = type(part)
            if _is_library(cls.__module__):
                continue
            self._owners[cls] = None
            self._add_method(cls, "forward")
            self._read_attributes(
                vars(part), [name for name in vars(part) if not name.startswith("_")], depth
            )

    def _read_attributes(self, attributes: dict[str, Any], names: list[str], depth: int) -> None:
        self._read_members((functools.partial(attributes.get, name, _ABSENT) for name in names), depth)

    def _add_method(self, cls: type, name: str) -> None:
        method = inspect.getattr_static(cls, name, None)
        match method:
            case property():
                method = method.fget
            case staticmethod() | classmethod():
                method = method.__func__
        if isinstance(method, types.FunctionType):
            self._tasks.append(_Task(method, 0, is_named=False))


@functools.lru_cache(maxsize=4096)
def _loaded_names(code: types.CodeType) -> _LoadedNames:
    chains: set[tuple[str, ...]] = set()
    attributes: set[str] = set()
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS_ATTRIBUTE:
            attributes.add(instruction.argval)
            # Without a name in front it is an attribute of a computed value.
            chain = (*chain, instruction.argval) if chain else ()
            continue
        chains.add(chain)
        chain = (instruction.argval,) if instruction.opname in _LOADS_NAME else ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a function or comprehension inside
            inner = _loaded_names(constant)
            chains |= inner.chains
            attributes |= inner.attributes
    return _LoadedNames(frozenset(chains - {()}), frozenset(attributes))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _user_globals(function: types.FunctionType) -> Mapping[str, Any]:
    """The globals of a function, or none if it is a library's."""
    names = function.__globals__
    if _is_library(names.get("__name__") or ""):
        return types.MappingProxyType({})
    return names


def _is_global(name: str, names: Mapping[str, Any]) -> bool:
    """Whether code that loads a name loads a global of the user's, which may not be assigned yet."""
    return name in names or (bool(names) and not hasattr(builtins, name))


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been assigned yet
        return _ABSENT


def _slots(cls: type) -> list[str]:
    """The names of all `__slots__` of a class and its bases."""
    declared = [vars(base).get("__slots__", ()) for base in cls.__mro__]
    # A single slot may be declared by a plain string.
    lists = [(names,) if isinstance(names, str) else names for names in declared]
    return list(itertools.chain.from_iterable(lists))


def _item(values: list, index: int) -> Any:
    return values[index] if index < len(values) else _ABSENT


def _is_on_device(module: torch.nn.Module) -> bool:
    return any(map(compat.is_ported, itertools.chain(module.parameters(), module.buffers())))
