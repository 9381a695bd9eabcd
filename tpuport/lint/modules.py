"""An index of the linted code: modules, their names, classes and functions, from the
syntax alone.
"""

import ast
import functools
import itertools
import keyword
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tpuport.lint.gpu_packages import imported_names
from tpuport.lint.regular_files import is_file
from tpuport.lint.scope_statements import (
    Definition,
    assigned_names,
    definitions,
    failing_imports,
    join_names,
    statements_of_scope,
    target_names,
)

# Packages that the linter knows from tables, and whose code it does not follow.
NOT_FOLLOWED: Final = frozenset(
    "torch torchax jax jaxlib numpy scipy einops torchvision torchaudio PIL cv2 pandas sklearn triton tensorflow flax"
    " flash_attn flash_attn_interface xformers apex bitsandbytes sageattention deepspeed megatron onnx onnxruntime"
    " matplotlib tqdm requests huggingface_hub safetensors tokenizers accelerate peft pytest regex packaging yaml"
    " libcst typer rich wrapt sentencepiece torch_xla importlib_metadata".split()
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionInfo:
    """A function or method of the linted code.

    Attributes:
        node: its definition (or lambda).
        module: the `ModuleInfo` of its file.
        owner: the `ClassInfo` it is a method of, or None.
        name: `forward`, `<lambda>`.
        qualname: `Model.forward`, `helper`, `Model.forward.inner`.
        decorators: dotted names, resolved through imports: "property", "torch.no_grad",
            "functools.lru_cache".
        closure: of a function inside a function, the interpreter's frame in which it
            was defined.
    """

    __slots__ = (
        "__dict__",
        "closure",
        "decorators",
        "module",
        "name",
        "node",
        "owner",
        "qualname",
    )

    def __init__(
        self,
        node: FunctionNode | ast.Lambda,
        module: "ModuleInfo",
        owner: "ClassInfo | None",
        prefix: str,
    ) -> None:
        self.node = node
        self.module = module
        self.owner = owner
        self.closure: Any = None
        self.name = getattr(node, "name", "<lambda>")
        self.qualname = join_names(prefix, self.name)
        self.decorators = _decorator_names(module, getattr(node, "decorator_list", []))

    def __repr__(self) -> str:
        return self.qualname

    def is_a(self, *names: str) -> bool:
        """Whether a decorator has one of these names, in whatever module it is."""
        return not self._decorator_names.isdisjoint(names)

    @functools.cached_property
    def _decorator_names(self) -> frozenset[str]:
        return frozenset(name.rpartition(".")[2] for name in self.decorators)

    @functools.cached_property
    def positional_parameters(self) -> list[ast.arg]:
        """The parameters that positional arguments may fill, `self` included."""
        return self.node.args.posonlyargs + self.node.args.args

    @functools.cached_property
    def named_parameters(self) -> list[ast.arg]:
        """All parameters but `*args` and `**kwargs`, `self` included."""
        return self.positional_parameters + self.node.args.kwonlyargs

    @functools.cached_property
    def calls_parameter(self) -> bool:
        """Whether it, or a function inside it, calls what one of them gets."""
        nodes = list(ast.walk(self.node))
        names = {node.arg for node in nodes if isinstance(node, ast.arg)}
        calls = (node.func for node in nodes if isinstance(node, ast.Call))
        return not names.isdisjoint(getattr(callee, "id", "") for callee in calls)

    @functools.cached_property
    def defaults(self) -> dict[str, ast.expr]:
        """Default expressions by parameter."""
        arguments = self.node.args
        pairs = [
            # The last parameters have the defaults.
            *zip(
                reversed(self.positional_parameters),
                reversed(arguments.defaults),
                strict=False,
            ),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        return {
            parameter.arg: default
            for parameter, default in pairs
            if default is not None
        }


class ClassInfo:
    """A class of the linted code.

    Attributes:
        node, module, qualname: as in `FunctionInfo`.
        methods: by name, its own only.
        assigned: its own class-level assignments, by name: the expression (or None for
            a bare annotation).
        annotated: its own class-level annotations, by name.
        decorators: dotted names, as of a function.
    """

    __slots__ = (
        "__dict__",
        "annotated",
        "assigned",
        "decorators",
        "methods",
        "module",
        "node",
        "qualname",
    )

    def __init__(self, node: ast.ClassDef, module: "ModuleInfo", prefix: str) -> None:
        self.node = node
        self.module = module
        self.qualname = join_names(prefix, node.name)
        self.decorators = _decorator_names(module, node.decorator_list)
        self.methods: dict[str, FunctionInfo] = {}
        self.assigned: dict[str, ast.expr | None] = {}
        self.annotated: dict[str, ast.expr] = {}
        for statement in statements_of_scope(node.body, module.top_package):
            self._add_statement(statement)

    def __repr__(self) -> str:
        return self.qualname

    def _add_statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                method = FunctionInfo(statement, self.module, self, self.qualname)
                # A property's setter has the name of its getter, which comes before it.
                if not any(
                    decorator.endswith((".setter", ".deleter"))
                    for decorator in method.decorators
                ):
                    self.methods[method.name] = method
            # `__call__ = decode`
            case ast.Assign(value=ast.Name(id=name)) if name in self.methods:
                self.methods |= dict.fromkeys(
                    target_names(statement), self.methods[name]
                )
            case ast.Assign(value=value):
                self.assigned |= dict.fromkeys(target_names(statement), value)
            case ast.AnnAssign(
                target=ast.Name(id=name), value=value, annotation=annotation
            ):
                self.assigned[name] = value
                self.annotated[name] = annotation


# What a module-level name is bound to: a definition, `("import", dotted)`,
# `("from", dotted, name)`, or an expression.
Binding = FunctionInfo | ClassInfo | ast.expr | tuple[str, ...]


class ModuleInfo:
    """A file and the meaning of its names.

    Attributes:
        path: absolute.
        name: dotted, from the root of its package; the file's stem if it is in none.
        tree: its syntax.
        lines: its text without line ends.
        package: dotted name of the package that its relative imports start from, ""
            outside packages.
        names: the last binding of each module-level name.
        stars: modules of `from x import *`, in their order; `star_names`: what names of
            them were found to be.
        imported: the bindings by imports, even if another statement binds the name
            later.
        unavailable: names that tell whether the import of a package that needs a GPU
            has succeeded.
        missing: names that such an import would have bound.
        classes: all classes, those inside functions and other classes first; several
            may have one name.
        functions: module-level functions; several may have one name.
        annotations, values, contexts: what the interpreter has found that annotations
            and module-level names mean, and what it tells rules about functions.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        tree: ast.Module,
        is_package: bool,
        lines: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.lines = lines
        self.name = name
        self.tree = tree
        self.package = name if is_package else name.rpartition(".")[0]
        self.names: dict[str, Binding] = {}
        self.stars: list[str] = []
        self.star_names: dict[str, Any] = {}
        self.imported: dict[str, tuple[str, ...]] = {}
        failing = list(failing_imports(tree.body, self.top_package))
        self.unavailable = frozenset(
            itertools.chain.from_iterable(map(assigned_names, failing))
        )
        self.missing = frozenset(
            name
            for statement in failing
            for name in imported_names(statement.body, self.top_package)
        )
        self.classes: list[ClassInfo] = []
        self.functions: list[FunctionInfo] = []
        self.annotations: dict[ast.expr, Any] = {}
        self.values: dict[str, Any] = {}
        self.contexts: dict[str, Any] = {}
        self._class_by_node: dict[ast.ClassDef, ClassInfo] = {}
        statements = statements_of_scope(tree.body, self.top_package)
        # Imports come first, because the dotted names of decorators and bases need them
        # wherever in the file they are. So a substitute for a library that may be
        # missing (`flash = None`) hides the library's name.
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._add_import(statement)
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._hide_substitutes(statement)
            self._add_statement(statement)
        # Few files have a class inside anything, and the search for one is a walk over
        # the whole tree.
        if any(
            line[:1].isspace() and line.lstrip().startswith("class ") for line in lines
        ):
            self._add_inner_classes()

    def __repr__(self) -> str:
        return self.name

    @property
    def top_package(self) -> str:
        """The outermost package of the file, "" outside packages."""
        return self.package.partition(".")[0]

    @property
    def functions_and_methods(self) -> list[FunctionInfo]:
        """The module-level functions, and the methods of all classes."""
        methods = itertools.chain.from_iterable(
            info.methods.values() for info in self.classes
        )
        return [*self.functions, *methods]

    @functools.cached_property
    def method_names(self) -> frozenset[str]:
        """The names of all classes' methods."""
        return frozenset(
            itertools.chain.from_iterable(info.methods for info in self.classes)
        )

    def klass(self, node: ast.ClassDef, prefix: str) -> ClassInfo:
        """The class that a definition in this file creates.

        Args:
            node: the definition.
            prefix: qualified name of the function or class around it, "" at module
                level.
        """
        if node not in self._class_by_node:
            self._class_by_node[node] = ClassInfo(node, self, prefix)
        return self._class_by_node[node]

    def known_class(self, node: ast.ClassDef) -> ClassInfo | None:
        """The class of a definition; None for one of another file."""
        return self._class_by_node.get(node)

    def _add_inner_classes(self) -> None:
        inner: list[ClassInfo] = []
        for definition in definitions(self.tree):
            match definition:
                case Definition(ast.ClassDef() as node, prefix, ast.AST()):
                    inner.append(self.klass(node, prefix))
        self.classes = inner + self.classes

    def _add_import(self, statement: ast.Import | ast.ImportFrom) -> None:
        for name, binding in self._bindings(statement):
            self._bind_import(name, binding)
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            self.stars.append(self.absolute(statement))

    def _bindings(
        self, statement: ast.Import | ast.ImportFrom
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The names that an import binds, except by a star."""
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                # `import a.b` binds `a`, `import a.b as c` binds `c` to the submodule.
                top = alias.name.partition(".")[0]
                module = alias.name if alias.asname else top
                yield alias.asname or top, ("import", module)
            return
        module = self.absolute(statement)
        for alias in statement.names:
            if alias.name != "*":
                yield alias.asname or alias.name, ("from", module, alias.name)

    def _hide_substitutes(self, statement: ast.Import | ast.ImportFrom) -> None:
        """Let an import of what is always there, the file's own package or torch, hide
        a substitute before it.
        """
        is_relative = getattr(statement, "level", 0) > 0
        for name, binding in self._bindings(statement):
            path = ".".join(binding[1:])
            is_own = path.partition(".")[0] == self.top_package != ""
            is_certain = is_relative or is_own or path in _PARTS_OF_TORCH
            # The order among imports is settled.
            if is_certain and not isinstance(self.names.get(name), tuple):
                self._bind_import(name, binding)

    def _bind_import(self, name: str, binding: tuple[str, ...]) -> None:
        self.names[name] = self.imported[name] = binding

    def _add_statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                function = FunctionInfo(statement, self, None, "")
                self.functions.append(function)
                self.names[statement.name] = function
            case ast.ClassDef():
                info = self.klass(statement, "")
                self.classes.append(info)
                self.names[statement.name] = info
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=function, args=[_, fields]),
            ) if self.dotted(function) == "collections.namedtuple":
                self._add_statement(_named_tuple(name, fields))
            case ast.Assign(value=value):
                self.names |= dict.fromkeys(target_names(statement), value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.names[name] = value

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The dotted name of the module in a `from ... import`."""
        if not statement.level:
            return statement.module or ""
        parts = self.package.split(".")
        # One dot is the package itself, each further dot one package up.
        parts = parts[: max(0, len(parts) - (statement.level - 1))]
        return ".".join(filter(None, [*parts, statement.module]))

    def binding(self, name: str) -> Binding | None:
        """The binding of a name; of
        `try: from a import f; except ImportError: f = None` the import.
        """
        binding = self.names.get(name)
        if isinstance(binding, ast.Constant):
            return self.imported.get(name, binding)
        return binding

    def dotted(self, node: ast.expr) -> str:
        """The dotted name of a Name or Attribute chain through this file's imports; ""
        for other expressions.
        """
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        head = node.id
        match self.binding(head):
            case ("import", module):
                head = module
            case ("from", module, name):
                head = f"{module}.{name}"
        return canonical(".".join([head, *reversed(attributes)]))


def _decorator_names(module: ModuleInfo, decorators: list[ast.expr]) -> tuple[str, ...]:
    # Of a call, `@lru_cache(maxsize=1)`, the name of what is called.
    return tuple(
        module.dotted(getattr(decorator, "func", decorator)) for decorator in decorators
    )


def _named_tuple(name: str, fields: ast.expr) -> ast.ClassDef:
    """The definition by `class` of what `name = namedtuple(..., fields)` defines."""
    match fields:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            names = [
                str(element.value)
                for element in elements
                if isinstance(element, ast.Constant)
            ]
        case ast.Constant(value=str() as text):
            names = text.replace(",", " ").split()
        case _:
            names = []
    # Others are an error of Python's, or have another name with `rename=True`.
    legal = [
        field
        for field in names
        if field.isidentifier() and not keyword.iskeyword(field)
    ]
    lines = [
        f"class {name}(typing.NamedTuple):",
        *(f"    {field}: object" for field in legal),
        "    pass",
    ]
    definition = ast.parse("\n".join(lines)).body[0]
    assert isinstance(definition, ast.ClassDef)
    for node in ast.walk(definition):
        ast.copy_location(node, fields)
    return definition


_PARTS_OF_TORCH: Final = {"torch", "torch.nn", "torch.nn.functional", "torch.Tensor"}
_CANONICAL_MODULES: Final = {
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.nn.common_types": "torch.nn",
    "torch.functional": "torch",
    "torch._tensor.Tensor": "torch.Tensor",
    "torch.autograd.grad_mode": "torch",
}


def canonical(name: str) -> str:
    """The usual name of a library object that has several:
    `torch.nn.modules.linear.Linear` is `torch.nn.Linear`.
    """
    # Nearly all names are not torch's, or are short already.
    if not name.startswith("torch."):
        return name
    if name == "torch.nn.modules":
        return "torch.nn"
    if name.startswith("torch.nn.modules."):
        return f"torch.nn.{name.rpartition('.')[2]}"
    for prefix, short_prefix in _CANONICAL_MODULES.items():
        # With a dot, so that `torch.functional_x` is not taken for a member of
        # `torch.functional`.
        if f"{name}.".startswith(f"{prefix}."):
            return short_prefix + name[len(prefix) :]
    return name


def package_root(path: Path) -> tuple[Path, str]:
    """The directory that would be on `sys.path` for this file, and the file's dotted
    name from there.
    """
    # A package has the name of its directory, which the loop adds.
    parts = [] if path.name == "__init__.py" else [path.stem]
    directory = path.parent
    while is_file(directory / "__init__.py") and directory.parent != directory:
        parts.append(directory.name)
        directory = directory.parent
    return directory, ".".join(reversed(parts)) or path.stem


def search_directories() -> list[Path]:
    """The directories of this environment's packages."""
    existing = filter(Path.is_dir, map(Path, filter(None, sys.path)))
    resolved = dict.fromkeys(map(Path.resolve, existing))
    return [
        directory
        for directory in resolved
        if directory.name in {"site-packages", "dist-packages"}
    ]
