"""Functions of a module whose source is that of a patch."""

import inspect
import logging
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType

from tpuport.errors import PortError
from tpuport.patches.digests import argument_key, digest
from tpuport.patches.patch import Patch
from tpuport.patches.targets import Definition, underlying

logger = logging.getLogger("tpuport")


class SourceIndex:
    """Patches by the sources that they were written for."""

    def __init__(self, patches: Iterable[Patch]) -> None:
        self._patches: dict[str, Patch] = {}
        self._argument_keys: set[str] = set()
        self.classes: set[str] = set()
        """The classes whose methods patches name: "module:qualified.name"."""
        for patch in patches:
            self.classes.add(patch.target.rpartition(".")[0])
            for source in patch.source:
                self._patches.setdefault(source, patch)
                self._argument_keys.add(source.partition("-")[0])

    def find(self, module: ModuleType) -> Iterator[tuple[Patch, Definition]]:
        """The functions and methods which a module defines that patches replace,
        wherever the patches' targets are.
        """
        for definition in definitions(module):
            function = inspect.unwrap(definition.function)
            code = getattr(function, "__code__", None)
            if code is None or argument_key(code) not in self._argument_keys:
                continue
            try:
                source = digest(definition.function, definition.holder)
            except PortError:  # without a source, it is known to be none of them
                continue
            if source in self._patches:
                yield self._patches[source], definition


def definitions(module: ModuleType) -> Iterator[Definition]:
    """The functions that a module defines, and those in the classes that it defines."""
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield Definition(module, name, value, value)
        elif isinstance(value, type):
            yield from _methods(value)


def _methods(cls: type) -> Iterator[Definition]:
    for name, raw in list(vars(cls).items()):
        function = underlying(raw)
        # Another name of a method, such as `__call__ = forward`, follows the method.
        if isinstance(function, FunctionType) and function.__name__ == name:
            yield Definition(cls, name, raw, function)
