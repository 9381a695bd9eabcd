"""A function that sees modules of some packages right after they were imported."""

import importlib.abc
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger("tpuport")


class ImportHook(importlib.abc.MetaPathFinder):
    """Stands first in `sys.meta_path` while it is installed, and has the other finders
    find each module.

    Args:
        is_wanted: whether the function sees the module of this name.
        after_import: gets each such module when its code has run. What it raises is
            logged, and the import succeeds all the same.
    """

    def __init__(
        self,
        is_wanted: Callable[[str], bool],
        after_import: Callable[[ModuleType], None],
    ) -> None:
        self._is_wanted = is_wanted
        self._after_import = after_import
        self._thread = threading.local()
        # Names of the modules whose code runs now, and which the function will see.
        self.running: set[str] = set()

    def install(self) -> None:
        """Begin to watch imports; does nothing if this is installed."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Leave imports alone; does nothing if this is not installed."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Iterable[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        """The spec of the other finders, whose loader calls the function afterwards."""
        # Another finder may ask all finders, this one among them.
        if getattr(self._thread, "is_searching", False) or not self._is_wanted(
            fullname
        ):
            return None
        self._thread.is_searching = True
        try:
            spec = self._find(fullname, path, target)
        finally:
            self._thread.is_searching = False
        if spec is not None:
            self._watch(spec.loader)
        return spec

    def _find(
        self, fullname: str, path: Iterable[str] | None, target: Any
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        """Let a loader call the function after it has executed its module."""
        execute = getattr(loader, "exec_module", None)
        # The loaders of built-in and frozen modules are classes, shared by all of them.
        if execute is None or isinstance(loader, type):
            return

        def exec_module(module: ModuleType) -> None:
            # The loader stays in the module's spec, and has its own method there.
            vars(loader).pop("exec_module", None)
            self.running.add(module.__name__)
            try:
                execute(module)
            finally:
                self.running.discard(module.__name__)
            try:
                self._after_import(module)
            except Exception as error:  # noqa: BLE001  an import never fails because of patches
                logger.warning(
                    "patches of %s: %s: %s",
                    module.__name__,
                    type(error).__name__,
                    error,
                )

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # a loader without a __dict__: `port` searches its modules
