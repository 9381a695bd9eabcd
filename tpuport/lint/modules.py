"""The linted code as an index: modules, their names, classes and functions, found across files without importing."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Packages whose insides are library knowledge (tables), not code to follow.
NOT_FOLLOWED: Final = frozenset(
    "torch torchax jax jaxlib numpy scipy einops torchvision torchaudio PIL cv2 pandas sklearn triton tensorflow flax"
    " flash_attn flash_attn_interface xformers apex bitsandbytes sageattention deepspeed megatron onnx onnxruntime"
    " matplotlib tqdm requests huggingface_hub safetensors tokenizers accelerate peft pytest regex packaging yaml"
    " libcst typer rich wrapt sentencepiece torch_xla".split()
)


class FunctionInfo:
    """A function or method of the linted code.

    Attributes:
        node: its definition (or lambda).
        module: the `ModuleInfo` it stands in.
        owner: the `ClassInfo` it is a method of, or None.
        qualname: `Model.forward`, `helper`, `Model.forward.inner`.
        decorators: dotted names, as written and resolved: "property", "torch.no_grad", "functools.lru_cache".
    """

    __slots__ = ("__dict__", "decorators", "module", "node", "owner", "qualname")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        module: "ModuleInfo",
        owner: "ClassInfo | None",
        prefix: str,
    ) -> None:
        self.node = node
        self.module = module
        self.owner = owner
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        self.qualname = f"{prefix}.{name}" if prefix else name
        listed = [] if isinstance(node, ast.Lambda) else node.decorator_list
        self.decorators = tuple(
            module.dotted(item.func if isinstance(item, ast.Call) else item) for item in listed
        )

    def is_a(self, *names: str) -> bool:
        """Whether a decorator has one of these names, whatever module it is taken from."""
        return any(decorator.rpartition(".")[2] in names for decorator in self.decorators)


class ClassInfo:
    """A class of the linted code.

    Attributes:
        node, module, qualname: as in `FunctionInfo`.
        methods: by name, its own only.
        assigned: its own class-level assignments, by name: the expression (or None for a bare annotation).
        annotated: its own class-level annotations, by name.
        decorators: dotted names, as of a function.
    """

    __slots__ = ("__dict__", "annotated", "assigned", "decorators", "methods", "module", "node", "qualname")

    def __init__(self, node: ast.ClassDef, module: "ModuleInfo", prefix: str) -> None:
        self.node = node
        self.module = module
        self.qualname = f"{prefix}.{node.name}" if prefix else node.name
        listed = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
        self.decorators = tuple(module.dotted(item) for item in listed)
        self.methods: dict[str, FunctionInfo] = {}
        self.assigned: dict[str, ast.expr | None] = {}
        self.annotated: dict[str, ast.expr] = {}
        for statement in _flat(node.body):
            self._take(statement)

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            info = FunctionInfo(statement, self.module, self, self.qualname)
            # A property's setter comes after its getter under the same name.
            if not any(decorator.endswith((".setter", ".deleter")) for decorator in info.decorators):
                self.methods[statement.name] = info
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    self.assigned[target.id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            self.assigned[statement.target.id] = statement.value
            self.annotated[statement.target.id] = statement.annotation


class ModuleInfo:
    """A file: what its names mean.

    Attributes:
        path: absolute.
        name: dotted, from the root of its package; the file's stem where it is in none.
        tree: its syntax.
        lines: its text, one string a line, without line ends.
        package: dotted name of the package that its relative imports start from, "" outside packages.
        names: what each module-level name is bound to last: a `FunctionInfo`, a `ClassInfo`, `("import", dotted)`,
            `("from", dotted, name)` or an expression.
        stars: modules of `from x import *`, in their order.
        imported: what imports bind, whatever is assigned to the name as well.
        classes: all classes, those inside functions and other classes first; of one name there may be several.
        functions: module-level functions; of one name there may be several.
    """

    def __init__(
        self, path: Path, name: str, tree: ast.Module, is_package: bool, lines: tuple[str, ...] = ()
    ) -> None:
        self.path = path
        self.lines = lines
        self.name = name
        self.tree = tree
        self.package = name if is_package else name.rpartition(".")[0]
        self.names: dict[str, FunctionInfo | ClassInfo | ast.expr | tuple[str, ...]] = {}
        self.stars: list[str] = []
        self.imported: dict[str, tuple[str, ...]] = {}
        self.classes: list[ClassInfo] = []
        self.functions: list[FunctionInfo] = []
        self._classes: dict[ast.ClassDef, ClassInfo] = {}
        # Imports first: the dotted names of decorators and bases need them, wherever in the file they stand. What
        # stands in for a library that may be missing (`flash = None`) wins over it, and loses against a file here.
        flat = list(_flat(tree.body))
        for statement in flat:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._take_import(statement)
        for statement in flat:
            if isinstance(statement, ast.ImportFrom) and self._is_near(statement):
                self._take_import(statement, stars=False)
            self._take(statement)
        # Few files have classes inside anything, and looking for them takes a walk over all of the tree.
        if any(line[:1].isspace() and line.lstrip().startswith("class ") for line in lines):
            inside = [(node, prefix) for node, prefix, around in definitions(tree) if around is not None]
            self.classes[:0] = [
                self.klass(node, name) for node, name in inside if isinstance(node, ast.ClassDef)
            ]

    def klass(self, node: ast.ClassDef, prefix: str) -> ClassInfo:
        """The class that a definition in this file makes.

        Args:
            node: the definition.
            prefix: qualified name of what it stands in, "" at module level.
        """
        found = self._classes.get(node)
        if found is None:
            found = self._classes[node] = ClassInfo(node, self, prefix)
        return found

    def _is_near(self, statement: ast.ImportFrom) -> bool:
        """Whether an import is from the file's own package."""
        top = self.package.partition(".")[0]
        return statement.level > 0 or (bool(top) and (statement.module or "").partition(".")[0] == top)

    def _take_import(self, statement: ast.Import | ast.ImportFrom, stars: bool = True) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.asname:
                    self.names[alias.asname] = self.imported[alias.asname] = ("import", alias.name)
                else:
                    top = alias.name.partition(".")[0]
                    self.names[top] = self.imported[top] = ("import", top)
            return
        origin = self.absolute(statement)
        for alias in statement.names:
            if alias.name == "*":
                self.stars += [origin] * stars
            else:
                name = alias.asname or alias.name
                self.names[name] = self.imported[name] = ("from", origin, alias.name)

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            function = FunctionInfo(statement, self, None, "")
            self.functions.append(function)
            self.names[statement.name] = function
        elif isinstance(statement, ast.ClassDef):
            klass = self.klass(statement, "")
            self.classes.append(klass)
            self.names[statement.name] = klass
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    self.names[target.id] = statement.value
        elif (
            isinstance(statement, ast.AnnAssign)
            and statement.value
            and isinstance(statement.target, ast.Name)
        ):
            self.names[statement.target.id] = statement.value

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The dotted name of the module that `from ... import` names."""
        if not statement.level:
            return statement.module or ""
        parts = self.package.split(".") if self.package else []
        parts = parts[: max(0, len(parts) - (statement.level - 1))]
        return ".".join([*parts, statement.module] if statement.module else parts)

    def binding(self, name: str) -> FunctionInfo | ClassInfo | ast.expr | tuple[str, ...] | None:
        """What a name is called by: of `try: from a import f; except ImportError: f = None` the import."""
        bound = self.names.get(name)
        return self.imported.get(name, bound) if isinstance(bound, ast.Constant) else bound

    def dotted(self, node: ast.expr) -> str:
        """The dotted name of a Name or Attribute chain through this file's imports; "" if it is neither."""
        trail: list[str] = []
        while isinstance(node, ast.Attribute):
            trail.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        bound = self.binding(node.id)
        head = node.id
        if isinstance(bound, tuple):
            head = bound[1] if bound[0] == "import" else f"{bound[1]}.{bound[2]}"
        return canonical(".".join([head, *reversed(trail)]))


_CANONICAL: Final = {
    "torch.nn.modules": "torch.nn",
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.nn.common_types": "torch.nn",
    "torch.functional": "torch",
    "torch._tensor.Tensor": "torch.Tensor",
    "torch.autograd.grad_mode": "torch",
}


def canonical(name: str) -> str:
    """One spelling for a library name that has several: `torch.nn.modules.linear.Linear` is `torch.nn.Linear`."""
    if not name.startswith("torch."):
        return name
    for prefix, short in _CANONICAL.items():
        if name == prefix:
            return short
        if name.startswith(prefix + "."):
            rest = name[len(prefix) + 1 :]
            # torch.nn.modules.linear.Linear: the file between goes.
            return f"{short}.{rest.rpartition('.')[2]}" if prefix == "torch.nn.modules" else f"{short}.{rest}"
    return name


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.Module) -> Iterator[tuple[Definition, str, Definition | None]]:
    """All functions and classes of a file, in its order, wherever they stand.

    Yields:
        The definition, the qualified name of the one around it ("" at module level), and that one itself.
    """
    waiting: list[tuple[ast.AST, str, Definition | None]] = [(node, "", None) for node in reversed(tree.body)]
    while waiting:
        node, prefix, around = waiting.pop()
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, Definition):
            yield node, prefix, around
            prefix, around = f"{prefix}.{node.name}" if prefix else node.name, node
        waiting += [(child, prefix, around) for child in reversed(list(ast.iter_child_nodes(node)))]


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body and of what it holds that binds names at the same level: `if`, `try`, `with`, loops."""
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.If):
            # The else branch first: where both bind a name, the condition is usually the better-equipped machine's.
            found += [*_flat(statement.orelse), *_flat(statement.body)]
        elif isinstance(statement, ast.Try | ast.TryStar):
            for handler in statement.handlers:
                found += _flat(handler.body)
            found += [*_flat(statement.body), *_flat(statement.orelse), *_flat(statement.finalbody)]
        elif isinstance(statement, ast.With | ast.For | ast.While):
            found += _flat(statement.body)
        else:
            found.append(statement)
    return found


def is_file(path: Path) -> bool:
    """Whether a file is there and may be asked for; a name too long, or a closed directory, is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def package_root(path: Path) -> tuple[Path, str]:
    """The directory that would be on `sys.path` for this file, and the file's dotted name from there."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    directory = path.parent
    while is_file(directory / "__init__.py") and directory.parent != directory:
        parts.append(directory.name)
        directory = directory.parent
    return directory, ".".join(reversed(parts)) or path.stem


def search_directories() -> list[Path]:
    """Where this environment's packages are."""
    seen = dict.fromkeys(Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir())
    return [path for path in seen if path.name in {"site-packages", "dist-packages"}]
