"""Finds and reads the modules that linted code imports, and says what a name in one of them is."""

import ast
import collections
import sys
from pathlib import Path

from tpuport.lint import source
from tpuport.lint.modules import (
    NOT_FOLLOWED,
    ClassInfo,
    FunctionInfo,
    ModuleInfo,
    canonical,
    package_root,
    search_directories,
)
from tpuport.lint.values import UNKNOWN, Class, External, Function, Module, Value

# Modules kept parsed. The tree of a thousand-line file takes some ten megabytes.
_KEPT = 96
_STARS = 12


class Project:
    """Modules by path and by dotted name, read when first asked for.

    Attributes:
        consulted: absolute paths looked at since it was last emptied, those that do not exist too.
    """

    def __init__(self) -> None:
        self._modules: collections.OrderedDict[Path, ModuleInfo | None] = collections.OrderedDict()
        self._found: dict[tuple[str, Path], Path | None] = {}
        self._directories = search_directories()
        self.consulted: set[str] = set()

    def add(self, file: source.SourceFile) -> ModuleInfo:
        """The module of a file that was read already."""
        kept = self._modules.get(file.path)
        if kept is not None and kept.tree is file.tree:
            return kept
        _, name = package_root(file.path)
        module = ModuleInfo(file.path, name, file.tree, file.path.name == "__init__.py", file.lines)
        self._keep(file.path, module)
        return module

    def module(self, dotted: str, asked_by: ModuleInfo) -> ModuleInfo | None:
        """The module of that dotted name as seen from another one, or None where it is a library or not there."""
        top = dotted.partition(".")[0]
        if not dotted or top in NOT_FOLLOWED or top in sys.stdlib_module_names:
            return None
        root = asked_by.__dict__.get("_root")
        if root is None:
            root = asked_by.__dict__["_root"] = package_root(asked_by.path)[0]
        key = (dotted, root)
        if key not in self._found:
            self._found[key] = self._find(dotted, root, asked_by)
        path = self._found[key]
        if path is None:
            return None
        self.consulted.add(str(path))
        return self._load(path)

    def _find(self, dotted: str, root: Path, asked_by: ModuleInfo) -> Path | None:
        relative = Path(*dotted.split("."))
        # A script's own directory and the directories above it are where research code keeps its packages.
        near = [root, *list(asked_by.path.parents)[:4]]
        for directory in dict.fromkeys([*near, *self._directories]):
            base = directory / relative
            for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                if candidate.is_file():
                    return candidate
        self.consulted.add(str((root / relative).with_suffix(".py")))
        return None

    def _load(self, path: Path) -> ModuleInfo | None:
        if path in self._modules:
            self._modules.move_to_end(path)
            return self._modules[path]
        try:
            file = source.read(path, str(path))
        except source.Unreadable:
            self._modules[path] = None
            return None
        _, name = package_root(path)
        module = ModuleInfo(path, name, file.tree, path.name == "__init__.py", file.lines)
        self._keep(path, module)
        return module

    def _keep(self, path: Path, module: ModuleInfo) -> None:
        self._modules[path] = module
        self._modules.move_to_end(path)
        while len(self._modules) > _KEPT:
            self._modules.popitem(last=False)

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
        found = self.module(dotted, asked_by) if depth < 12 else None
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
        if depth > 6 or name.startswith("_") or len(module.stars) > _STARS:
            return None
        for dotted in module.stars:
            found = self.module(dotted, module)
            if found is None or found is module:
                if dotted.partition(".")[0] == "torch":
                    return External(canonical(f"{dotted}.{name}"))
                continue
            value = self.lookup(found, name, depth + 1)
            if isinstance(value, ast.expr):
                return Binding(found, name)
            if value is not None:
                return value
        return None


class Binding(Value):
    """A name bound to an expression in another module, still to be evaluated there."""

    __slots__ = ("module", "name")

    def __init__(self, module: ModuleInfo, name: str) -> None:
        self.module, self.name = module, name


def unbound(value: Value | None) -> Value:
    """The value, or `UNKNOWN` for a name that is bound to nothing."""
    return UNKNOWN if value is None else value
