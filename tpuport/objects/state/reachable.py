"""What a function reaches without being given it: the modules whose weights must be
arguments of its program.

Followed are closures, the globals that code really loads (and attributes of imported
files), the functions named there, bound objects, arguments of partials, defaults, and
the contents of containers and of plain objects. A module that is reached in another way
(`getattr`, an import inside the function) is not seen here.

Whether any of this has changed since is for `python_state` to say.
"""

import builtins
import dis
import functools
import inspect
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from tpuport import compat
from tpuport.objects.object_parts import PYTHONS_OWN, contents_of
from tpuport.objects.part_containers import ABSENT, cell_contents

# How deep containers and objects inside of one another are searched, and how many
# values are looked at in all.
_MAX_DEPTH = 6
_MAX_VALUES = 20_000
# The globals of these packages' functions are their own affair: no model of a user is
# among them.
_LIBRARIES = (
    frozenset(sys.stdlib_module_names - {"__main__"})
    | frozenset(
        "torch torchax jax jaxlib numpy transformers diffusers tpuport".split()  # also where they are linked
    )
)
_INSTALLATION_FOLDERS = frozenset({"site-packages", "dist-packages"})
# Installed packages that define parts of models that were reached: research code that
# was installed, whose flags and tables decide as the user's own do.
_model_packages: set[str] = set()
# Of the standard library's objects only these lead to what a user gave them; a logger
# or a thread leads everywhere.
OPAQUE_HOMES = sys.stdlib_module_names - {
    "functools",
    "types",
    "collections",
    "__main__",
}
# Values that lead to no other value.
_LEAVES = (
    str, bytes, int, float, complex, types.NoneType, type, types.BuiltinFunctionType, torch.Tensor, torch.dtype,
    torch.device, jax.Array, np.ndarray, np.generic,
)  # fmt: skip
# A global that code only assigns is one of its names too: what it leaves there has to
# leave the program.
_LOADS_NAME = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "STORE_GLOBAL"})
_LOADS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
# Code that names one of these may read attributes by names that it computes.
_READS_ANY_ATTRIBUTE = frozenset(
    {"getattr", "hasattr", "vars", "attrgetter", "__dict__", "__getattribute__"}
)


_NO_OPERATORS = frozenset(
    "__init__ __new__ __post_init__ __del__ __repr__ __str__ __reduce__ __reduce_ex__ __getstate__ __setstate__ "
    "__copy__ __deepcopy__ __init_subclass__ __class_getitem__".split()
)


class LoadedNames(NamedTuple):
    """What code loads from outside of itself.

    Attributes:
        chains: names, each with the attributes that are taken of it at once:
            ("helpers", "step").
        attributes: all attributes, of whatever value.
        assigned: globals that it assigns.
    """

    chains: frozenset[tuple[str, ...]]
    attributes: frozenset[str]
    assigned: frozenset[str]


class _Task(NamedTuple):
    """A value to look at; `is_named` if the compiled function itself names it."""

    value: Any
    depth: int
    is_named: bool


class ReachableModules:
    """The modules that a function reaches at the moment.

    Args:
        function: where the search begins.
        code: other functions that may be called, and classes whose methods may be.

    Attributes:
        modules: each once. Those that only a container, an object or another function
            leads to are among them if they are on the device: the function may never
            use them.
        functions: the user's functions and methods whose code may run.
        attributes: the names of all attributes that their code loads, of whatever
            value.
        reads_any_attribute: whether that code may also load attributes by names that it
            computes.
    """

    def __init__(self, function: Callable, code: Iterable[Any] = ()) -> None:
        self.functions: list[types.FunctionType] = []
        self.attributes: set[str] = set()
        self.reads_any_attribute = False
        self._named: dict[torch.nn.Module, None] = {}
        self._others: dict[torch.nn.Module, None] = {}
        # By id, with the value itself, so that no other value gets its id.
        self._seen: dict[int, Any] = {}
        self._owners: dict[type, None] = {}
        self._tasks: deque[_Task] = deque()
        for part in code:
            if isinstance(part, type):
                self._add_class(part)
            else:
                self._add([part], 0)
        self._follow(function)
        on_device = {module: None for module in self._others if _is_on_device(module)}
        self.modules: list[torch.nn.Module] = list(self._named | on_device)
        self._seen.clear()

    def _follow(self, function: Callable) -> None:
        self._tasks.append(_Task(function, 0, is_named=True))
        followed: set[tuple[type, str]] = set()
        while self._tasks:
            self._visit(self._tasks.popleft())
            if self._tasks:
                continue
            # A method is known by its name alone, so every class that was met may be
            # the one whose method is called. In order, because functions are compared
            # one by one with those of an earlier search.
            for method in itertools.product(
                list(self._owners), sorted(self.attributes)
            ):
                if method not in followed:
                    followed.add(method)
                    self._add_method(*method)

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
                # What it is called with, too, belongs to the function.
                parts = (value.func, *value.args, *value.keywords.values())
                self._add(parts, depth, is_named)
            case types.MethodType():
                self._add(contents_of(value), depth, is_named)
            case types.FunctionType():
                self._visit_function(value, depth, is_named)
            case types.ModuleType():
                pass  # what code takes from a file is followed by its name
            case _:
                self._visit_object(value, depth)

    def _visit_function(
        self, function: types.FunctionType, depth: int, is_named: bool
    ) -> None:
        code = function.__code__
        loaded = loaded_names(code)
        self.attributes |= loaded.attributes
        names = user_globals(function)
        if names:
            self.functions.append(function)
            loads = {
                name for chain in loaded.chains for name in chain
            } | loaded.attributes
            self.reads_any_attribute |= not _READS_ANY_ATTRIBUTE.isdisjoint(loads)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._add(map(cell_contents, cells.values()), depth, is_named)
        self._add(function.__defaults__ or (), depth, is_named)
        self._add((function.__kwdefaults__ or {}).values(), depth, is_named)
        for first, *attributes in loaded.chains:
            if first in cells:
                self._follow_file(
                    cell_contents(cells[first]), attributes, depth, is_named
                )
            elif is_global(first, names):
                value = names.get(first, ABSENT)
                # A function named here may mention models that it never uses; the
                # compiled function uses its own.
                self._add(
                    [value], depth, is_named and isinstance(value, torch.nn.Module)
                )
                self._follow_file(value, attributes, depth, is_named)

    def _follow_file(
        self, value: Any, attributes: list[str], depth: int, is_named: bool
    ) -> None:
        """What code takes from an imported file: `helpers.step` names a function as
        `step` does.
        """
        for name in attributes:
            if not isinstance(value, types.ModuleType):
                return
            value = vars(value).get(name, ABSENT)
            self._add([value], depth, is_named)

    def _add(self, values: Iterable[Any], depth: int, is_named: bool = False) -> None:
        self._tasks.extend(
            _Task(value, depth, is_named) for value in values if value is not ABSENT
        )

    def _visit_object(self, value: Any, depth: int) -> None:
        cls = type(value)
        home = cls.__module__.partition(".")[0]
        if home in OPAQUE_HOMES and not isinstance(value, PYTHONS_OWN):
            return
        parts = contents_of(value)
        if home == "tpuport":
            # Only what the user gave to an object of tpuport's, such as a compiled
            # function. Its other objects are not part of the user's program, and
            # remember earlier calls, so that what is found would depend on them.
            parts = [part for part in parts if not _is_of_tpuport(part)]
        elif home != "builtins":
            self._add_class(cls)
            # functools.cache and its like keep the function that they wrap.
            wrapped = inspect.getattr_static(value, "__wrapped__", None)
            self._tasks.append(_Task(wrapped, depth, is_named=False))
        self._add(parts, depth + 1)

    def _add_class(self, cls: type) -> None:
        """Note a class whose methods may be called."""
        if not is_library(cls.__module__):
            self._owners[cls] = None
        # Operators call methods that no code names.
        for method in _operators(cls):
            self._add_method(cls, method)

    def _visit_module(self, module: torch.nn.Module, depth: int) -> None:
        """Note a module, and look in the user's own classes for modules that are not
        registered as parts of it.
        """
        self._others[module] = None
        for part in module.modules():
            cls = type(part)
            _note_package(part)
            if is_library(cls.__module__):
                continue
            self._owners[cls] = None
            self._add_method(cls, "forward")
            self._add(
                (
                    value
                    for name, value in vars(part).items()
                    if not name.startswith("_")
                ),
                depth + 1,
            )

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
def loaded_names(code: types.CodeType) -> LoadedNames:
    """The names that code, and functions inside of it, may load."""
    chains: set[tuple[str, ...]] = set()
    attributes: set[str] = set()
    assigned: set[str] = set()
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS_ATTRIBUTE:
            attributes.add(instruction.argval)
            # Without a name in front it is an attribute of a computed value.
            chain = (*chain, instruction.argval) if chain else ()
            continue
        chains.add(chain)
        chain = (instruction.argval,) if instruction.opname in _LOADS_NAME else ()
        if instruction.opname == "STORE_GLOBAL":
            assigned.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a function or comprehension inside
            inner = loaded_names(constant)
            chains |= inner.chains
            attributes |= inner.attributes
            assigned |= inner.assigned
    return LoadedNames(
        frozenset(chains - {()}), frozenset(attributes), frozenset(assigned)
    )


def is_library(module: str) -> bool:
    """Whether a module of Python belongs to a library, given its name.

    So does everything that is installed, and not only linked, into an environment,
    except packages that define parts of the models.
    """
    package = module.partition(".")[0]
    return package in _LIBRARIES or (
        package not in _model_packages and _is_installed(package)
    )


def _note_package(part: torch.nn.Module) -> None:
    """Take the packages that define a part of a model for the user's.

    Parts that hold nothing, such as a layer that rearranges, come from libraries that
    serve all kinds of code.
    """
    if part._parameters or part._modules:
        _model_packages.update(
            cls.__module__.partition(".")[0] for cls in type(part).__mro__
        )


def _is_installed(package: str) -> bool:
    # Not cached where the package is not imported, which it may be later.
    imported = sys.modules.get(package)
    return imported is not None and _is_in_environment(imported)


@functools.lru_cache(maxsize=4096)
def _is_in_environment(package: types.ModuleType) -> bool:
    # A namespace package has folders and no file.
    paths = [getattr(package, "__file__", None), *getattr(package, "__path__", ())]
    folders = {part for path in paths if path for part in Path(path).parts}
    return not _INSTALLATION_FOLDERS.isdisjoint(folders)


def is_of_library(cls: type) -> bool:
    """Whether a class, or one that it is derived from, is a library's, whose code may
    read any attribute.
    """
    return any(
        base is not object and is_library(base.__module__) for base in cls.__mro__
    )


def user_globals(function: types.FunctionType) -> Mapping[str, Any]:
    """The globals of a function, or none if it is a library's."""
    names = function.__globals__
    if is_library(names.get("__name__") or ""):
        return types.MappingProxyType({})
    return names


def is_global(name: str, names: Mapping[str, Any]) -> bool:
    """Whether code that loads a name loads a global of the user's, which may not be
    assigned yet.
    """
    return name in names or (bool(names) and not hasattr(builtins, name))


def _is_of_tpuport(value: Any) -> bool:
    return type(value).__module__.startswith("tpuport.")


def _operators(cls: type) -> list[str]:
    """The special methods of a user's class, but for those that make, print and copy
    its objects.
    """
    bases = [base for base in cls.__mro__ if not is_library(base.__module__)]
    names = {
        name
        for base in bases
        for name in vars(base)
        if name.startswith("__") and name.endswith("__")
    }
    return sorted({*names, "__call__"} - _NO_OPERATORS)


def _is_on_device(module: torch.nn.Module) -> bool:
    return any(
        map(compat.is_ported, itertools.chain(module.parameters(), module.buffers()))
    )
