"""What a function reaches without being given it: the modules whose weights must be arguments of its program.

Followed are closures, the globals that code really loads (and attributes of imported files), the functions named
there, bound objects, arguments of partials, defaults, and the contents of containers and of plain objects. A module
that is reached in another way (`getattr`, an import inside the function) is not seen here.
"""

import builtins
import dis
import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch

from tpuport import compat

# Containers and objects inside of one another that are looked into, and values that are looked at, at most.
_DEPTH = 6
_MOST = 20_000
# The globals of these packages' functions are their own affair: no model of a user is among them.
_LIBRARIES = frozenset(sys.stdlib_module_names - {"__main__"}) | frozenset(
    "torch torchvision torchaudio torchax jax jaxlib flax optax numpy scipy transformers diffusers accelerate einops "
    "safetensors tokenizers huggingface_hub tqdm beartype jaxtyping tpuport pytest".split()
)
# Of the standard library's objects, those that hold what they were given; a logger or a thread leads everywhere.
_HOLDERS = frozenset({"functools", "types", "collections"})
_LEAVES = (
    str, bytes, int, float, complex, types.NoneType, type, types.BuiltinFunctionType, torch.Tensor, torch.dtype,
    torch.device, jax.Array, np.ndarray, np.generic,
)  # fmt: skip
_ABSENT = object()


def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


@functools.lru_cache(maxsize=4096)
def _loads(code: types.CodeType) -> tuple[frozenset[tuple[str, ...]], frozenset[str]]:
    """(names loaded from outside, each with the attributes taken of it at once; names of all attributes loaded)."""
    chains, attributes, chain = set(), set(), ()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(step.argval)
            chain = (*chain, step.argval) if chain else ()
        elif chain:
            chains.add(chain)
            chain = ()
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            chain = (step.argval,)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, names = _loads(inner)
            chains |= more
            attributes |= names
    return frozenset(chains), frozenset(attributes)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been assigned yet
        return _ABSENT


def _slots(value: Any) -> list[str]:
    names = [vars(base).get("__slots__", ()) for base in type(value).__mro__]
    return [name for slots in names for name in ((slots,) if isinstance(slots, str) else slots)]


class ReachableModules:
    """The modules that a function reaches, as things stand now.

    Attributes:
        modules: each once. Those that only a container, an object or another function leads to are among them if
            they are on the device: of these the function may never use one.
    """

    def __init__(self, function: Callable) -> None:
        self._direct: dict[torch.nn.Module, None] = {}
        self._others: dict[torch.nn.Module, None] = {}
        # How to read again what was read here, and what was found: (getter, value), (container, length).
        self._read: list[tuple[Callable[[], Any], Any]] = []
        self._lengths: list[tuple[Any, int]] = []
        self._seen: dict[int, Any] = {}
        self._owners: dict[type, None] = {}
        self._attributes: set[str] = set()
        self._left: deque[tuple[Any, int, bool]] = deque()
        self._follow(function)
        found = self._direct | {m: None for m in self._others if _on_the_device(m)}
        self.modules: list[torch.nn.Module] = list(found)
        self._seen.clear()

    def is_current(self) -> bool:
        """Whether the names, items and attributes that were followed still hold what they held."""
        return all(get() is value for get, value in self._read) and all(
            len(container) == length for container, length in self._lengths
        )

    def _follow(self, function: Callable) -> None:
        self._left.append((function, 0, True))
        methods: set[tuple[type, str]] = set()
        while self._left:
            while self._left:
                self._visit(*self._left.popleft())
            # Methods by the names that were called, of the objects that were met: which of them is one's, nobody says.
            called = {(cls, name) for cls in self._owners for name in self._attributes} - methods
            methods |= called
            for cls, name in called:
                self._method(cls, name)

    def _visit(self, value: Any, depth: int, direct: bool) -> None:
        """Look at one value; `direct` is what the compiled function itself names."""
        if direct and isinstance(value, torch.nn.Module):
            self._direct[value] = None
        if isinstance(value, _LEAVES) or id(value) in self._seen or len(self._seen) > _MOST or depth > _DEPTH:
            return
        self._seen[id(value)] = value  # kept, so that no other value gets its id
        if isinstance(value, torch.nn.Module):
            self._module(value, depth)
        elif isinstance(value, functools.partial):
            for held in (value.func, *value.args, *value.keywords.values()):
                self._left.append((held, depth, direct))
        elif isinstance(value, types.MethodType):
            self._left += [(value.__self__, depth, direct), (value.__func__, depth, direct)]
        elif isinstance(value, types.FunctionType):
            self._function(value, depth, direct)
        elif isinstance(value, dict | list | tuple | set | frozenset):
            self._container(value, depth)
        elif not isinstance(value, types.ModuleType):
            self._object(value, depth)

    def _function(self, function: types.FunctionType, depth: int, direct: bool) -> None:
        code, known = function.__code__, function.__globals__
        chains, attributes = _loads(code)
        self._attributes |= attributes
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for cell in cells.values():
            self._slot(functools.partial(_contents, cell), depth, direct)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._left.append((default, depth, direct))
        for first, *rest in chains:
            if first in cells:
                self._of_file(_contents(cells[first]), rest, depth, direct)
            elif not _is_library(known.get("__name__")) and (first in known or not hasattr(builtins, first)):
                # A function named here may mention models that it is never asked for; this one asks for its own.
                own = direct and isinstance(known.get(first), torch.nn.Module)
                self._slot(functools.partial(known.get, first, _ABSENT), depth, own)
                self._of_file(known.get(first), rest, depth, direct)

    def _of_file(self, value: Any, names: list[str], depth: int, direct: bool) -> None:
        """What code takes from an imported file: `helpers.step` names a function as `step` does."""
        for name in names:
            if not isinstance(value, types.ModuleType):
                return
            get = functools.partial(vars(value).get, name, _ABSENT)
            value = get()
            self._slot(get, depth, direct)

    def _slot(self, get: Callable[[], Any], depth: int, direct: bool = False) -> None:
        """Visit what a name, an item or an attribute holds, and remember it."""
        value = get()
        self._read.append((get, value))
        if value is not _ABSENT:
            self._left.append((value, depth, direct))

    def _container(self, value: Any, depth: int) -> None:
        self._lengths.append((value, len(value)))
        if isinstance(value, dict):
            gets: Iterator[Any] = (functools.partial(dict.get, value, key, _ABSENT) for key in value)
        elif isinstance(value, list):
            gets = (functools.partial(_item, value, place) for place in range(len(value)))
        else:
            self._left.extend((held, depth + 1, False) for held in value)
            return
        self._members(gets, depth)

    def _members(self, gets: Iterator[Callable[[], Any]], depth: int) -> None:
        """Visit members; plain values, of which there may be many, are not remembered, but None may become a model."""
        for get in gets:
            value = get()
            if value is None or not isinstance(value, _LEAVES):
                self._slot(get, depth + 1)

    def _object(self, value: Any, depth: int) -> None:
        home = type(value).__module__.partition(".")[0]
        if home in sys.stdlib_module_names - _HOLDERS - {"__main__"}:
            return
        if not _is_library(home):
            self._owners[type(value)] = None
        self._method(type(value), "__call__")
        wrapped = inspect.getattr_static(value, "__wrapped__", None)  # functools.cache and its like
        if wrapped is not None:
            self._left.append((wrapped, depth, False))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._members(
                (functools.partial(attributes.get, name, _ABSENT) for name in list(attributes)), depth
            )
        self._members((functools.partial(getattr, value, name, None) for name in _slots(value)), depth)

    def _module(self, module: torch.nn.Module, depth: int) -> None:
        """Note a module, and look for those that it holds without registering them, in classes of the user's own."""
        self._others[module] = None
        for part in module.modules():
            if _is_library(type(part).__module__):
                continue
            self._owners[type(part)] = None
            self._method(type(part), "forward")
            own = [name for name in vars(part) if not name.startswith("_")]
            self._members((functools.partial(vars(part).get, name, _ABSENT) for name in own), depth)

    def _method(self, cls: type, name: str) -> None:
        found = inspect.getattr_static(cls, name, None)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if isinstance(found, types.FunctionType):
            self._left.append((found, 0, False))


def _item(values: list, place: int) -> Any:
    return values[place] if place < len(values) else _ABSENT


def _on_the_device(module: torch.nn.Module) -> bool:
    tensors = (tensor for group in (module.parameters(), module.buffers()) for tensor in group)
    return any(compat.is_ported(tensor) for tensor in tensors)
