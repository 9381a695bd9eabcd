"""The whole text of a file, traced or not: imports, library names, device words, definitions, module classes."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from tpuport.lint.abstract_values import Tensor
from tpuport.lint.events import Definition, Event, Import, ModuleClass, Text, Use
from tpuport.lint.interpreter import TracingInterpreter
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo

# Without one of these a stretch of text holds nothing that the rules want to hear of here.
_WORTH: Final = re.compile(
    r"cuda|autocast|compile|dynamo|distributed|flex_attention|pin_memory|pin_memory_device|non_blocking|half|float16"
    r"|float64|double|load_inline|cpp_extension|triton|[Ss]tream|nccl|flash_attn|xformers|sageattention|apex"
    r"|bitsandbytes|inference_mode|lru_cache|nvtx|CUDA|jit|\.cpu|backends|deepspeed|megatron|sequence_parallel"
)
_DEVICE: Final = re.compile(r"(cuda|cpu|gpu|mps|xpu|npu)(:\d+)?$")
# Conditions that ask for a GPU, or for a library that needs one, before it is used.
_CHECKS: Final = re.compile(r"cuda|_available|is_initialized|\b(?i:has|have)_|gpu|triton|flash|xformers|apex")


class Scanner:
    """Walks syntax trees for what needs no values."""

    def __init__(self, interpreter: TracingInterpreter) -> None:
        self.interpreter = interpreter

    def traced(self, module: ModuleInfo, function: FunctionInfo) -> None:
        """A function that tracing reaches."""
        scan = _Scan(self.interpreter, module, function.qualname, function.owner)
        scan.traced = True
        self._definition(scan, function, True)
        if _worth(module, function.node):
            scan.depth = 1
            scan.body(function.node.body if isinstance(function.node.body, list) else [function.node.body])

    def file(self, module: ModuleInfo, traced: set[ast.AST]) -> None:
        """A file, but for the bodies of the functions that were traced, given by their definitions."""
        scan = _Scan(self.interpreter, module, "", None)
        scan.skip = traced
        if _worth(module, None):
            scan.body(module.tree.body)
        else:
            scan.imports_only()
        for info in module.functions:
            if info.node not in traced:
                self._definition(scan, info, False)
        for klass in module.classes:
            for method in klass.methods.values():
                if method.node not in traced:
                    self._definition(scan, method, False)
            if self.interpreter.classes.is_module(klass):
                scan.function, scan.owner = klass.qualname, klass
                scan.tell(self._module_class(klass))

    def _definition(self, scan: "_Scan", function: FunctionInfo, traced: bool) -> None:
        if isinstance(function.node, ast.Lambda):
            return
        owner = function.owner
        is_module = owner is not None and self.interpreter.classes.is_module(owner)
        before = scan.function, scan.owner
        scan.function, scan.owner = function.qualname, owner
        scan.tell(Definition(function.node, function, traced, is_module))
        scan.function, scan.owner = before

    def _module_class(self, klass: ClassInfo) -> ModuleClass:
        attributes = self.interpreter.classes.attributes(klass)
        where: dict[str, ast.AST] = {}
        outside: dict[str, list[ast.AST]] = {}
        for name, method in klass.methods.items():
            for store in _self_stores(method.node):
                if name == "__init__":
                    where.setdefault(store.attr, store)
                else:
                    outside.setdefault(store.attr, []).append(store)
        registered = {
            name
            for name, value in attributes.items()
            if not isinstance(value, Tensor) or value.origin in {"parameter", "buffer"}
        }
        return ModuleClass(klass.node, klass, attributes, where, registered, outside)


def _self_stores(node: ast.AST) -> Iterator[ast.Attribute]:
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and isinstance(part.value, ast.Name)
            and part.value.id == "self"
        ):
            yield part


def _worth(module: ModuleInfo, node: ast.AST | None) -> bool:
    lines = module.lines
    if node is not None:
        lines = lines[getattr(node, "lineno", 1) - 1 : getattr(node, "end_lineno", None)]
    return bool(_WORTH.search("\n".join(lines)))


class _Scan:
    """A walk over statements, knowing where it is.

    Attributes:
        function: qualified name of the function or class around, "" at module level.
        owner: the class around, or None.
        traced: all of this is traced.
        skip: definitions whose bodies are left out.
        depth: number of functions around: what stands in none runs on import.
        guards, checks: number of `if`s and `try`s around, and of `if`s that ask for a GPU or a library.
        in_init: inside the `__init__` of a module.
        decorating: inside a decorator.
    """

    def __init__(
        self, interpreter: TracingInterpreter, module: ModuleInfo, function: str, owner: ClassInfo | None
    ) -> None:
        self.interpreter = interpreter
        self.module = module
        self.function = function
        self.owner = owner
        self.traced = False
        self.skip: set[ast.AST] = set()
        self.depth = 0
        self.guards = 0
        self.checks = 0
        self.in_init = False
        self.decorating = False

    def tell(self, event: Event) -> None:
        """Ask the rules about something in the function or class that the walk is in."""
        self.interpreter.report(event, self.module, self.function, self.owner)

    @property
    def where(self) -> dict[str, Any]:
        return {
            "at_import": self.depth == 0,
            "in_init": self.in_init,
            "traced": self.traced,
            "guarded": self.guards > 0,
            "checked": self.checks > 0,
        }

    def imports_only(self) -> None:
        """The imports of a file in which nothing else can matter."""
        for statement in self.module.tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement)

    def body(self, nodes: list[Any]) -> None:
        """Walk over each."""
        for node in nodes:
            self.visit(node)

    def visit(self, node: ast.AST) -> None:
        """Walk over a node and what is in it."""
        handler = _VISITORS.get(type(node))
        if handler is not None:
            handler(self, node)
        else:
            for child in ast.iter_child_nodes(node):
                self.visit(child)

    # --- structure ---

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.decorating = True
        self.body(node.decorator_list)
        self.decorating = False
        self._defaults(node.args)
        if node in self.skip:
            return
        name = f"{self.function}.{node.name}" if self.function else node.name
        before = self.function, self.depth, self.in_init, self.guards
        is_method = self.owner is not None and self.function == self.owner.qualname
        self.function, self.depth, self.guards = name, self.depth + 1, 0
        self.in_init = self.in_init or (
            is_method
            and node.name == "__init__"
            and self.owner is not None
            and self.interpreter.classes.is_module(self.owner)
        )
        self.body(node.body)
        self.function, self.depth, self.in_init, self.guards = before

    def _class(self, node: ast.ClassDef) -> None:
        self.decorating = True
        self.body(node.decorator_list)
        self.decorating = False
        before = self.function, self.owner
        self.function = f"{self.function}.{node.name}" if self.function else node.name
        self.owner = next((info for info in self.module.classes if info.node is node), None)
        self.body(node.body)
        self.function, self.owner = before

    def _if_exp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        test = self.module.lines[node.test.lineno - 1 : node.test.end_lineno]
        checks = any(_CHECKS.search(line) for line in test)
        self.guards += 1
        self.checks += checks
        self.visit(node.body)
        self.checks -= checks
        self.visit(node.orelse)
        self.guards -= 1

    def _if(self, node: ast.If) -> None:
        self.visit(node.test)
        # `if __name__ == "__main__":` does not run on import.
        main = isinstance(node.test, ast.Compare) and getattr(node.test.left, "id", "") == "__name__"
        test = self.module.lines[node.test.lineno - 1 : node.test.end_lineno]
        checks = any(_CHECKS.search(line) for line in test)
        self.guards += 1
        self.depth += main
        self.checks += checks
        self.body(node.body)
        self.checks -= checks
        self.depth -= main
        self.body(node.orelse)
        self.guards -= 1

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        # `try: ... finally:` lets every error through.
        guards = bool(node.handlers)
        self.guards += guards
        self.body(node.body)
        for handler in node.handlers:
            self.body(handler.body)
        self.guards -= guards
        self.body(node.orelse)
        self.body(node.finalbody)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.name
            if isinstance(node, ast.ImportFrom):
                name = f"{self.module.absolute(node)}.{name}"
            self.tell(Import(node, name, self.guards > 0, self.depth == 0))

    # --- names ---

    def _call(self, node: ast.Call) -> None:
        callee = self._name_of(node.func)
        if callee:
            self.tell(Use(node, callee, node, **self.where, decorator=self.decorating))
        decorating, self.decorating = self.decorating, False
        if isinstance(node.func, ast.Attribute):
            if callee.startswith("."):
                self.visit(node.func.value)
        elif not isinstance(node.func, ast.Name):
            self.visit(node.func)
        for argument in node.args:
            self._argument(argument, "argument", callee)
        for keyword in node.keywords:
            self._argument(keyword.value, f"keyword {keyword.arg}", callee)
        self.decorating = decorating

    def _argument(self, node: ast.expr, role: str, callee: str) -> None:
        if isinstance(node, ast.Constant):
            self._text(node, role, callee)
        else:
            self.visit(node)

    def _text(self, node: ast.Constant, role: str, callee: str = "") -> None:
        if isinstance(node.value, str) and _DEVICE.match(node.value):
            self.tell(Text(node, node.value, role, callee, **self.where))

    def _name_of(self, node: ast.expr) -> str:
        """Dotted name through imports, `.method` for a method of anything else, "" for local names."""
        dotted = self.module.dotted(node)
        head = node
        while isinstance(head, ast.Attribute):
            head = head.value
        if dotted and isinstance(head, ast.Name) and isinstance(self.module.binding(head.id), tuple):
            return dotted
        return f".{node.attr}" if isinstance(node, ast.Attribute) else ""

    def _attribute(self, node: ast.Attribute) -> None:
        name = self._name_of(node)
        if name and not name.startswith("."):
            self.tell(Use(node, name, None, **self.where, decorator=self.decorating))
        else:
            self.visit(node.value)

    def _name(self, node: ast.Name) -> None:
        bound = self.module.names.get(node.id)
        if isinstance(bound, tuple) and isinstance(node.ctx, ast.Load):
            self.tell(Use(node, self.module.dotted(node), None, **self.where, decorator=self.decorating))

    def _constant(self, node: ast.Constant) -> None:
        self._text(node, "other")

    def _compare(self, node: ast.Compare) -> None:
        for part in (node.left, *node.comparators):
            if isinstance(part, ast.Constant):
                self._text(part, "compare")
            else:
                self.visit(part)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if isinstance(node.value, ast.Constant):
            self._text(node.value, "assign")
        elif node.value is not None:
            self.visit(node.value)

    def _defaults(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *node.kw_defaults]:
            if isinstance(default, ast.Constant):
                self._text(default, "default")
            elif default is not None:
                self.visit(default)


_VISITORS: Final[dict[type, Any]] = {
    ast.FunctionDef: _Scan._definition,
    ast.AsyncFunctionDef: _Scan._definition,
    ast.ClassDef: _Scan._class,
    ast.If: _Scan._if,
    ast.IfExp: _Scan._if_exp,
    ast.Try: _Scan._try,
    ast.TryStar: _Scan._try,
    ast.Import: _Scan._import,
    ast.ImportFrom: _Scan._import,
    ast.Call: _Scan._call,
    ast.Attribute: _Scan._attribute,
    ast.Name: _Scan._name,
    ast.Constant: _Scan._constant,
    ast.Compare: _Scan._compare,
    ast.Assign: _Scan._assign,
    ast.AnnAssign: _Scan._assign,
}
