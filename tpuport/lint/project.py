"""Finds and reads the modules that linted code imports, and says what a name in one of them is."""

import ast
import builtins
import collections
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tpuport.lint import source
from tpuport.lint.abstract_values import Class, External, Function, Module, Value
from tpuport.lint.modules import (
    NOT_FOLLOWED,
    ClassInfo,
    FunctionInfo,
    ModuleInfo,
    canonical,
    is_file,
    package_root,
    search_directories,
)

# Modules kept parsed. The tree of a thousand-line file takes some ten megabytes.
_KEPT: Final = 96
# Modules that `from x import *` is followed into, from one module; and how far names are followed through modules.
_STARS: Final = 12
_STAR_DEPTH: Final = 6
_DEPTH: Final = 12
# Directories above a file in which its imports are looked for.
_ABOVE: Final = 4
# Bytes of a name; longer ones are no files' names.
_LONGEST: Final = 240
# Built-in functions that `from torch import *` hides.
_HIDDEN: Final = frozenset({"abs", "all", "any", "max", "min", "pow", "range", "round", "sum"})


class Project:
    """Modules by path and by dotted name, read when first asked for."""

    def __init__(self) -> None:
        self._modules: collections.OrderedDict[Path, ModuleInfo | None] = collections.OrderedDict()
        self._found: dict[tuple[str, Path], tuple[Path | None, tuple[str, ...]]] = {}
        self._roots: dict[Path, Path] = {}
        # By file, what was looked at for the names that it imports. It outlives the file's module.
        self._looked: dict[str, set[str]] = collections.defaultdict(set)
        self._directories = search_directories()

    def add(self, file: source.SourceFile) -> ModuleInfo:
        """The module of a file that was read already."""
        kept = self._modules.get(file.path)
        if kept is not None and kept.tree is file.tree:
            return kept
        return self._make(file)

    def dependencies(self, paths: Iterable[str]) -> set[str]:
        """Files that these files' names have led to so far, however far; those looked for and not found too."""
        found: set[str] = set()
        waiting = list(paths)
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                waiting += self._looked.get(path, ())
        return found

    def module(self, dotted: str, asked_by: ModuleInfo) -> ModuleInfo | None:
        """The module of that dotted name as seen from another one, or None where it is a library or not there."""
        top = dotted.partition(".")[0]
        if not dotted or top in NOT_FOLLOWED or top in sys.stdlib_module_names:
            return None
        key = (dotted, asked_by.path.parent)
        if key not in self._found:
            self._found[key] = self._find(dotted, asked_by.path)
        path, looked = self._found[key]
        self._looked[str(asked_by.path)].update(looked)
        return None if path is None else self._load(path)

    def _find(self, dotted: str, asked_by: Path) -> tuple[Path | None, tuple[str, ...]]:
        """A module's file, and all paths whose coming or going would change the answer."""
        relative = Path(*dotted.split("."))
        top = relative.parts[0]
        if max(len(part.encode()) for part in relative.parts) > _LONGEST:
            return None, ()
        # A script's own directory and the directories above it are where research code keeps its packages.
        near = [self._root(asked_by), *list(asked_by.parents)[:_ABOVE]]
        looked: list[str] = []
        for directory in dict.fromkeys([*near, *self._directories]):
            base = directory / relative
            candidates = (base.with_suffix(".py"), base / "__init__.py")
            for candidate in candidates:
                if is_file(candidate):
                    return candidate, (*looked, str(candidate))
            # Where the whole package is missing, that is one thing to watch for all of its modules.
            whole = directory / top
            missing = candidates if whole.is_dir() else (directory / f"{top}.py", whole)
            looked += map(str, missing)
        return None, tuple(looked)

    def _root(self, path: Path) -> Path:
        root = self._roots.get(path.parent)
        if root is None:
            root = self._roots[path.parent] = package_root(path)[0]
        return root

    def _load(self, path: Path) -> ModuleInfo | None:
        if path in self._modules:
            self._modules.move_to_end(path)
            return self._modules[path]
        try:
            file = source.read(path, str(path))
        except source.Unreadable:
            self._modules[path] = None
            return None
        return self._make(file)

    def _make(self, file: source.SourceFile) -> ModuleInfo:
        root, name = package_root(file.path)
        module = ModuleInfo(file.path, name, file.tree, file.path.name == "__init__.py", file.lines)
        # With an `__init__.py` there it would be a module of another name.
        self._looked[str(file.path)].add(str(root / "__init__.py"))
        self._modules[file.path] = module
        self._modules.move_to_end(file.path)
        while len(self._modules) > _KEPT:
            self._modules.popitem(last=False)
        return module

    def lookup(self, module: ModuleInfo, name: str, depth: int = 0) -> Value | ast.expr | None:
        """What a module-level name is: a value, an expression still to be evaluated there, or None: not bound."""
        bound = module.names.get(name)
        if bound is None:
            return self._lookup_star(module, name, depth)
        if isinstance(bound, FunctionInfo):
            return Function(bound)
        if isinstance(bound, ClassInfo):
            return Class(bound)
        if isinstance(bound, ast.expr):
            return bound
        if bound[0] == "import":
            return self.imported(bound[1], module)
        return self.member(bound[1], bound[2], module, depth)

    def imported(self, dotted: str, asked_by: ModuleInfo) -> Value:
        """A module as a value."""
        found = self.module(dotted, asked_by)
        return Module(found) if found else External(canonical(dotted))

    def member(self, dotted: str, name: str, asked_by: ModuleInfo, depth: int = 0) -> Value:
        """`from dotted import name` as a value."""
        found = self.module(dotted, asked_by) if depth < _DEPTH else None
        if found is not None and found is not asked_by:
            value = self.lookup(found, name, depth + 1)
            if isinstance(value, ast.expr):
                return Binding(found, name)
            if value is not None:
                return value
        # A submodule, or a name that a lazily importing package makes up.
        submodule = self.module(f"{dotted}.{name}", asked_by)
        if submodule is not None:
            return Module(submodule)
        return External(canonical(f"{dotted}.{name}"))

    def _lookup_star(self, module: ModuleInfo, name: str, depth: int) -> Value | ast.expr | None:
        # A package that gathers hundreds of modules by stars would have them all read for one name.
        if depth > _STAR_DEPTH or name.startswith("_") or len(module.stars) > _STARS:
            return None
        # The last import wins. What torch's modules have is not looked up: they are asked when nothing else has it.
        for dotted in reversed(module.stars):
            found = self.module(dotted, module)
            if found is not None and found is not module:
                value = self.lookup(found, name, depth + 1)
                if isinstance(value, ast.expr):
                    return Binding(found, name)
                if value is not None:
                    return value
        if hasattr(builtins, name) and name not in _HIDDEN:
            return None
        torch = next((dotted for dotted in module.stars if dotted.partition(".")[0] == "torch"), None)
        return External(canonical(f"{torch}.{name}")) if torch else None


class Binding(Value):
    """A name bound to an expression in another module, still to be evaluated there."""

    __slots__ = ("module", "name")

    def __init__(self, module: ModuleInfo, name: str) -> None:
        self.module, self.name = module, name
