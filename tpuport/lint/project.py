"""The modules that linted code imports: where they are, and what a name in one of them
means.
"""

import ast
import builtins
import collections
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.lint import source
from tpuport.lint.abstract_values import (
    UNKNOWN,
    Class,
    External,
    Function,
    Module,
    Value,
)
from tpuport.lint.modules import (
    NOT_FOLLOWED,
    ClassInfo,
    FunctionInfo,
    ModuleInfo,
    canonical,
    package_root,
    search_directories,
)
from tpuport.lint.regular_files import is_file
from tpuport.lint.work import MOST_TOKENS, meter

# Number of parsed modules in memory, and of tokens in them all. 96 modules of models
# have about a million.
_MAX_MODULES: Final = 96
_MAX_TOKENS: Final = MOST_TOKENS
# A package that collects hundreds of modules by stars would have to be read as a whole
# for one name.
_MAX_STARS: Final = 40
_MAX_STAR_DEPTH: Final = 6
# Names are followed through this many modules.
_MAX_DEPTH: Final = 12
# Number of directories above a file in which its imports are searched.
_MAX_PARENTS: Final = 4
# No file has a longer name, in bytes.
_MAX_NAME_LENGTH: Final = 240
# Built-in functions that `from torch import *` hides.
_HIDDEN_BY_TORCH: Final = frozenset(
    {"abs", "all", "any", "max", "min", "pow", "range", "round", "sum"}
)


class _Location(NamedTuple):
    """The file of a module, None if there is none, and all paths whose appearance would
    change that.
    """

    path: Path | None
    consulted: tuple[str, ...]


class Project:
    """Modules by path and by dotted name, read when they are needed."""

    def __init__(self) -> None:
        self._modules: collections.OrderedDict[Path, ModuleInfo | None] = (
            collections.OrderedDict()
        )
        # Of every module that was ever in memory.
        self._tokens: dict[Path, int] = {}
        self._locations: dict[tuple[str, Path], _Location] = {}
        self._package_roots: dict[Path, Path] = {}
        # By file, the paths consulted for the names that it imports. This outlives the
        # file's module.
        self._consulted: dict[str, set[str]] = collections.defaultdict(set)
        self._search_directories = search_directories()

    def add(self, file: source.SourceFile) -> ModuleInfo:
        """The module of a file that has been read already."""
        module = self._modules.get(file.path)
        if module is not None and module.tree is file.tree:
            return module
        return self._create_module(file)

    def dependencies(self, paths: Iterable[str]) -> set[str]:
        """All paths that were consulted for the names in these files, directly and
        through other files.
        """
        dependencies: set[str] = set()
        pending = list(paths)
        while pending:
            path = pending.pop()
            if path not in dependencies:
                dependencies.add(path)
                pending += self._consulted.get(path, ())
        return dependencies

    # --- modules ---

    def module(self, dotted: str, importer: ModuleInfo) -> ModuleInfo | None:
        """The module that a dotted name means in another one; None for a library, and
        if there is no such module.
        """
        top = dotted.partition(".")[0]
        if not dotted or top in sys.stdlib_module_names:
            return None
        if top in NOT_FOLLOWED and top != importer.top_package:
            return None
        key = (dotted, importer.path.parent)
        if key not in self._locations:
            self._locations[key] = self._locate(dotted, importer.path)
        path, consulted = self._locations[key]
        self._consulted[str(importer.path)].update(consulted)
        return self._load(path) if path else None

    def is_own_package(self, dotted: str, importer: ModuleInfo) -> bool:
        """Whether a dotted name belongs to a package of the linted code, rather than an
        installed one of its name.
        """
        top = dotted.partition(".")[0]
        if top == importer.top_package:
            return True
        nearby = [
            self._package_root(importer.path),
            *list(importer.path.parents)[:_MAX_PARENTS],
        ]
        for directory in dict.fromkeys(nearby):
            if directory in self._search_directories:
                continue
            for base in (directory / top, directory / "src" / top):
                candidates = (base.with_suffix(".py"), base / "__init__.py")
                self._consulted[str(importer.path)].update(map(str, candidates))
                if any(map(is_file, candidates)):
                    return True
        return False

    def is_installed_elsewhere(self, module: ModuleInfo, caller: ModuleInfo) -> bool:
        """Whether a module belongs to an installed package that another one's is not
        of.
        """
        return (
            module.top_package != caller.top_package
            and self._package_root(module.path) in self._search_directories
        )

    def _locate(self, dotted: str, importer: Path) -> _Location:
        parts = dotted.split(".")
        if max(len(part.encode()) for part in parts) > _MAX_NAME_LENGTH:
            return _Location(None, ())
        # Research code keeps its packages beside the script, or in a directory above
        # it.
        nearby = [self._package_root(importer), *list(importer.parents)[:_MAX_PARENTS]]
        consulted: list[str] = []
        for directory in dict.fromkeys([*nearby, *self._search_directories]):
            base = directory.joinpath(*parts)
            candidates = (base.with_suffix(".py"), base / "__init__.py")
            for candidate in candidates:
                if is_file(candidate):
                    return _Location(candidate, (*consulted, str(candidate)))
            # If the whole package is missing, its appearance is all there is to watch
            # for.
            package = directory / parts[0]
            if not package.is_dir():
                candidates = (directory / f"{parts[0]}.py", package)
            consulted += map(str, candidates)
        return _Location(None, tuple(consulted))

    def _package_root(self, path: Path) -> Path:
        if path.parent not in self._package_roots:
            self._package_roots[path.parent], _ = package_root(path)
        return self._package_roots[path.parent]

    def _load(self, path: Path) -> ModuleInfo | None:
        if path in self._modules:
            self._modules.move_to_end(path)
            meter.use_module(path, self._tokens.get(path, 0))
            return self._modules[path]
        try:
            file = source.read(path, str(path))
        except source.Unreadable:
            self._modules[path] = None
            return None
        return self._create_module(file)

    def _create_module(self, file: source.SourceFile) -> ModuleInfo:
        root, name = package_root(file.path)
        module = ModuleInfo(
            file.path, name, file.tree, file.path.name == "__init__.py", file.lines
        )
        # An `__init__.py` there would change the module's name.
        self._consulted[str(file.path)].add(str(root / "__init__.py"))
        self._tokens[file.path] = source.count_tokens(file.text)
        meter.use_module(file.path, self._tokens[file.path])
        self._modules[file.path] = module
        self._modules.move_to_end(file.path)
        self._forget_modules()
        return module

    def _forget_modules(self) -> None:
        """Keep the modules that were used last, as many as fit."""
        tokens = sum(self._tokens.get(path, 0) for path in self._modules)
        while len(self._modules) > _MAX_MODULES or (
            tokens > _MAX_TOKENS and len(self._modules) > 1
        ):
            path, _ = self._modules.popitem(last=False)
            tokens -= self._tokens.get(path, 0)

    # --- names ---

    def lookup(
        self, module: ModuleInfo, name: str, depth: int = 0
    ) -> Value | ast.expr | None:
        """What a module-level name means: a value, an expression still to be evaluated
        there, or None if unbound.
        """
        match module.names.get(name):
            # The import fails, and the code has None in its place, or leaves the name
            # unbound.
            case tuple() | ast.Constant(value=None) if name in module.missing:
                return External(
                    canonical(".".join(module.imported[name][1:])), missing=True
                )
            case None:
                return self._lookup_star(module, name, depth)
            case FunctionInfo() as function:
                return Function(function)
            case ClassInfo() as info:
                return Class(info)
            case ("import", dotted):
                return self.imported(dotted, module)
            case ("from", dotted, member):
                return self.member(dotted, member, module, depth)
            case expression:
                assert isinstance(expression, ast.expr)
                return expression

    def definition(
        self, module: ModuleInfo, name: str
    ) -> tuple[ModuleInfo, ast.expr] | None:
        """The expression that a name of a module is bound to, with the module that
        binds it; None for all else.
        """
        bound = self.lookup(module, name)
        while isinstance(bound, Binding):
            module, name = bound.module, bound.name
            bound = self.lookup(module, name)
        return (module, bound) if isinstance(bound, ast.expr) else None

    def imported(self, dotted: str, importer: ModuleInfo) -> Value:
        """A module as a value."""
        module = self.module(dotted, importer)
        return Module(module) if module else External(canonical(dotted))

    def member(
        self, dotted: str, name: str, importer: ModuleInfo, depth: int = 0
    ) -> Value:
        """`from dotted import name` as a value."""
        # A name that no module binds is a submodule, or a lazily importing package
        # provides it.
        return self._value_in(dotted, name, importer, depth) or self.imported(
            f"{dotted}.{name}", importer
        )

    def _value_in(
        self, dotted: str, name: str, importer: ModuleInfo, depth: int
    ) -> Value | None:
        """The value of a name in another module; None if that does not exist, or does
        not bind the name.
        """
        module = self.module(dotted, importer)
        if module is None or module is importer or depth >= _MAX_DEPTH:
            return None
        value = self.lookup(module, name, depth + 1)
        return Binding(module, name) if isinstance(value, ast.expr) else value

    def _lookup_star(self, module: ModuleInfo, name: str, depth: int) -> Value | None:
        """The value of a name that `from x import *` may bind."""
        if (
            depth > _MAX_STAR_DEPTH
            or name.startswith("_")
            or len(module.stars) > _MAX_STARS
        ):
            return None
        if name not in module.star_names:
            # Packages may import each other's names in a circle.
            module.star_names[name] = None
            module.star_names[name] = self._name_of_stars(module, name, depth)
        return module.star_names[name]

    def _name_of_stars(self, module: ModuleInfo, name: str, depth: int) -> Value | None:
        # The last import wins. What torch's modules contain is not known: they are
        # asked if nothing else has the name.
        for dotted in reversed(module.stars):
            value = self._value_in(dotted, name, module, depth)
            if value is not None:
                return value
        if hasattr(builtins, name) and name not in _HIDDEN_BY_TORCH:
            return None
        torch_modules = [
            dotted for dotted in module.stars if dotted.partition(".")[0] == "torch"
        ]
        return (
            External(canonical(f"{torch_modules[0]}.{name}")) if torch_modules else None
        )


def imported_name(module: ModuleInfo, name: str) -> Value:
    """What an import binds a name to: `f` on the right-hand side of
    `f = torch.compile(f)`.
    """
    match module.imported.get(name):
        case ("import", dotted):
            return External(dotted)
        case ("from", dotted, member):
            return External(canonical(f"{dotted}.{member}"))
        case _:
            return UNKNOWN


class Binding(Value):
    """A name bound to an expression in another module, still to be evaluated there."""

    __slots__ = ("module", "name")

    def __init__(self, module: ModuleInfo, name: str) -> None:
        self.module = module
        self.name = name
