"""Functions of a module whose source is that of a patch."""

import inspect
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from tpuport.errors import PortError
from tpuport.patches.digests import argument_key, digest
from tpuport.patches.patch import Patch
from tpuport.patches.targets import Definition, underlying

# Packages whose modules are many and contain no models.
NO_MODEL_CODE = frozenset(("torch", "jax", "jaxlib", "numpy", "tpuport", "torchax"))


class SourceIndex:
    """Patches by the sources that they were written for.

    Attributes:
        modules, packages: of the targets.
        classes: whose methods are targets: "module:qualified.name".
    """

    def __init__(self, patches: Iterable[Patch]) -> None:
        self._patches: dict[str, Patch] = {}
        self._argument_keys: set[str] = set()
        # What was found in a module, by the spec of its import: a reload makes another.
        self._found: WeakKeyDictionary[ModuleType, tuple[Any, list[_Match]]] = (
            WeakKeyDictionary()
        )
        self.modules: set[str] = set()
        self.packages: set[str] = set()
        self.classes: set[str] = set()
        for patch in patches:
            self.modules.add(patch.module)
            self.packages.add(patch.package)
            self.classes.add(patch.target.rpartition(".")[0])
            # Their functions have no copies in models, and some have arguments as
            # thousands of functions have.
            if patch.package in NO_MODEL_CODE:
                continue
            for source in patch.source:
                self._patches.setdefault(source, patch)
                self._argument_keys.add(source.partition("-")[0])

    def find(self, module: ModuleType) -> "list[_Match]":
        """The functions and methods of a module that have the source of a patch, each
        with that patch.
        """
        spec, found = self._found.get(module, (None, []))
        if spec is None or spec is not module.__spec__ or not _are_current(found):
            found = list(self._search(module))
            self._found[module] = module.__spec__, found
        return found

    def _search(self, module: ModuleType) -> "Iterator[_Match]":
        for definition in definitions(module):
            function = inspect.unwrap(definition.function)
            code = getattr(function, "__code__", None)
            # Code without a file was written by a program, as that of dataclasses is.
            if code is None or code.co_filename.startswith("<"):
                continue
            if argument_key(code) not in self._argument_keys:
                continue
            try:
                source = digest(definition.function, definition.holder)
            except PortError:  # without a source, it is known to be none of them
                continue
            if source in self._patches:
                yield self._patches[source], definition


_Match = tuple[Patch, Definition]


def _are_current(found: Iterable[_Match]) -> bool:
    return all(
        vars(definition.holder).get(definition.name) is definition.raw
        for _, definition in found
    )


def definitions(module: ModuleType) -> Iterator[Definition]:
    """The functions that a module defines, and those in the classes that it defines."""
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        # Another name of a function, also of a method such as `__call__ = forward`,
        # follows the function.
        if isinstance(value, FunctionType) and value.__name__ == name:
            yield Definition(module, name, value, value)
        elif isinstance(value, type):
            yield from _methods(value)


def _methods(cls: type) -> Iterator[Definition]:
    for name, raw in list(vars(cls).items()):
        function = underlying(raw)
        if isinstance(function, FunctionType) and function.__name__ == name:
            yield Definition(cls, name, raw, function)
