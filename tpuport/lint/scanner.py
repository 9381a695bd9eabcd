"""The scan of a file's whole text, traced or not: imports, library names, device
strings, definitions, modules.
"""

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tpuport.lint.events import Definition, Event, Import, ModuleClass, Text, Use
from tpuport.lint.gpu_packages import is_gpu_package
from tpuport.lint.interpreter import TracingInterpreter
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo
from tpuport.lint.scope_statements import all_nodes, join_names

# Text without one of these contains nothing that a rule wants to know from the scanner.
_RELEVANT: Final = (
    "cuda autocast compile dynamo distributed pin_memory non_blocking half float16 float64 double"
    " load_inline cpp_extension triton Stream stream nccl flash_attn xformers sageattention apex bitsandbytes"
    " lru_cache nvtx CUDA jit .cpu backends deepspeed megatron sequence_parallel"
).split()
_DEVICE: Final = re.compile(r"(cuda|cpu|gpu|mps|xpu|npu)(:\d+)?$")
# Names of devices; a `device_type` is only compared, or that of autocast.
_DEVICE_NAME: Final = re.compile(r"(?i)(^|_)(device\d*|dev)$")
# Conditions that check for a GPU, or for a library that needs one, before the code uses
# it.
_CHECKS: Final = re.compile(
    r"cuda|_available|is_initialized|\b(?i:has|have)_|gpu|triton|flash|xformers|apex"
)


class Scanner:
    """Walks over syntax trees for everything that needs no values."""

    def __init__(self, interpreter: TracingInterpreter) -> None:
        self.interpreter = interpreter

    def scan_traced(self, function: FunctionInfo) -> None:
        """Scan a function that tracing reaches."""
        scan = _Scan(self.interpreter, function.module)
        scan.function = function.qualname
        scan.owner = function.owner
        scan.is_traced = True
        _report_definition(scan, function)
        node = function.node
        if _is_relevant(function.module.lines[node.lineno - 1 : node.end_lineno]):
            # The walk starts inside the function, which does not run on import.
            scan.depth = 1
            match node.body:
                case list() as statements:
                    scan.visit_all(statements)
                case expression:
                    scan.visit(expression)

    def scan_rest(self, module: ModuleInfo, traced: set[ast.AST]) -> None:
        """Scan a file, except for the bodies of traced functions.

        Args:
            module: the file.
            traced: the definitions of the traced functions, of other files too.
        """
        scan = _Scan(self.interpreter, module)
        scan.skipped = traced
        if _is_relevant(module.lines):
            scan.visit_all(module.tree.body)
        else:
            scan.visit_all(
                node
                for node in module.tree.body
                if isinstance(node, ast.Import | ast.ImportFrom)
            )
        for function in module.functions_and_methods:
            if function.node not in traced:
                _report_definition(scan, function)
        for info in filter(self.interpreter.classes.is_module, module.classes):
            with scan.inside(info.qualname, info):
                scan.report(self._module_class(info))

    def _module_class(self, info: ClassInfo) -> ModuleClass:
        assignments: dict[str, ast.AST] = {}
        if "__init__" in info.methods:
            for target in _self_assignments(info.methods["__init__"].node):
                # A second assignment is still the same attribute.
                assignments.setdefault(target.attr, target)
        return ModuleClass(
            info.node, info, self.interpreter.classes.attributes(info), assignments
        )


def _report_definition(scan: "_Scan", function: FunctionInfo) -> None:
    if not isinstance(function.node, ast.Lambda):
        with scan.inside(function.qualname, function.owner):
            scan.report(Definition(function.node, function, scan.is_traced))


def _is_relevant(lines: Iterable[str]) -> bool:
    # Four times as fast as a regular expression of so many words that differ in their
    # first letters.
    text = "\n".join(lines)
    return any(word in text for word in _RELEVANT)


def _last_name(target: ast.expr) -> str:
    """`device` of `device` and of `self.device`; "" for other targets."""
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _alternatives(test: ast.expr) -> list[ast.expr]:
    """The conditions of which one is enough."""
    match test:
        case ast.BoolOp(op=ast.Or(), values=values):
            return values
        case _:
            return [test]


def _self_assignments(node: ast.AST) -> Iterator[ast.Attribute]:
    """The targets `self.name` in a method."""
    for part in all_nodes(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                yield part


class _Scan:
    """A walk over statements that knows where it is.

    Attributes:
        function: qualified name of the function or class around, "" at module level.
        owner: the class around, or None.
        is_traced: all of the code is traced.
        skipped: definitions whose bodies are left out.
        depth: number of functions around: code in none of them runs on import.
        guards: number of `if`s and `try`s around; `tries`: of `try`s.
        checks: number of `if`s around that check for a GPU or a library.
        in_init: inside the `__init__` of an `nn.Module`.
        in_decorator: inside a decorator.
    """

    def __init__(self, interpreter: TracingInterpreter, module: ModuleInfo) -> None:
        self.interpreter = interpreter
        self.module = module
        self.function = ""
        self.owner: ClassInfo | None = None
        self.is_traced = False
        self.skipped: set[ast.AST] = set()
        self.depth = 0
        self.guards = 0
        self.tries = 0
        self.checks = 0
        self.in_init = False
        self.in_decorator = False

    def report(self, event: Event) -> None:
        """Pass an event in the current function or class to the rules."""
        self.interpreter.report(event, self.module, self.function)

    @contextlib.contextmanager
    def inside(self, qualname: str, owner: ClassInfo | None) -> Iterator[None]:
        """Walk inside a function or class."""
        before = self.function, self.owner
        self.function, self.owner = qualname, owner
        yield
        self.function, self.owner = before

    @property
    def _circumstances(self) -> dict[str, Any]:
        """The fields that events of library names and device strings share."""
        return {
            "at_import": self.depth == 0,
            "in_init": self.in_init,
            "traced": self.is_traced,
            "guarded": self.guards > 0,
            "tried": self.tries > 0,
            "checked": self.checks > 0,
        }

    def visit_all(self, nodes: Iterable[ast.AST]) -> None:
        """Walk over several nodes. What follows a statement that leaves where there is
        no GPU runs only with one.
        """
        checks, guards = self.checks, self.guards
        for node in nodes:
            self.visit(node)
            if isinstance(node, ast.If) and self._leaves_without_gpu(node):
                self.checks += 1
                self.guards += 1
        self.checks, self.guards = checks, guards

    def _leaves_without_gpu(self, node: ast.If) -> bool:
        """Whether it is `if not torch.cuda.is_available(): return` or its like."""
        leaves = isinstance(
            node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break
        )
        return leaves and any(map(self._denies_gpu, _alternatives(node.test)))

    def _denies_gpu(self, test: ast.expr) -> bool:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=asked):
                return self._is_check(asked)
            case ast.Compare(
                left=asked, ops=[ast.NotEq()], comparators=[ast.Constant(value=str())]
            ):
                return self._is_check(test)
            case ast.Compare(
                left=asked, ops=[ast.Is()], comparators=[ast.Constant(value=None)]
            ):
                return self._is_check(asked)
            case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value="cpu")]):
                return True
            case _:
                return False

    def _is_check(self, test: ast.expr) -> bool:
        """Whether a condition asks for a GPU or a library."""
        lines = self.module.lines[test.lineno - 1 : test.end_lineno]
        return _CHECKS.search("\n".join(lines)) is not None

    def visit(self, node: ast.AST) -> None:
        """Walk over a node and everything in it."""
        visitor = _VISITORS.get(type(node))
        if visitor is not None:
            visitor(self, node)
        else:
            self.visit_all(ast.iter_child_nodes(node))

    # --- structure ---

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_decorators(node.decorator_list)
        for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
            self._visit_value(default, "default")
        if node in self.skipped:
            return
        before = self.depth, self.in_init, self.guards, self.tries
        self.depth += 1
        self.in_init |= node.name == "__init__" and self._is_in_module_class()
        # The function may be called from anywhere, also from unguarded code.
        self.guards = self.tries = 0
        with self.inside(join_names(self.function, node.name), self.owner):
            self.visit_all(node.body)
        self.depth, self.in_init, self.guards, self.tries = before

    def _visit_lambda(self, node: ast.Lambda) -> None:
        for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
            self._visit_value(default, "default")
        # The body runs when it is called, which may be never.
        before = self.depth, self.guards, self.tries
        self.depth += 1
        self.guards = self.tries = 0
        self._visit_value(node.body, "other")
        self.depth, self.guards, self.tries = before

    def _visit_class(self, node: ast.ClassDef) -> None:
        self._visit_decorators(node.decorator_list)
        owner = self.module.known_class(node)
        with self.inside(join_names(self.function, node.name), owner):
            self.visit_all(node.body)

    def _is_in_module_class(self) -> bool:
        """Whether the innermost scope is an `nn.Module`."""
        if self.owner is None or self.function != self.owner.qualname:
            return False
        return self.interpreter.classes.is_module(self.owner)

    def _visit_decorators(self, decorators: list[ast.expr]) -> None:
        self.in_decorator = True
        self.visit_all(decorators)
        self.in_decorator = False

    def _visit_if(self, node: ast.If) -> None:
        self.visit(node.test)
        # `if __name__ == "__main__":` does not run on import.
        is_main = (
            isinstance(node.test, ast.Compare)
            and getattr(node.test.left, "id", "") == "__name__"
        )
        self._visit_branches(node.test, node.body, node.orelse, is_main)

    def _visit_conditional_expression(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._visit_branches(node.test, [node.body], [node.orelse])

    def _visit_branches(
        self,
        test: ast.expr,
        body: Iterable[ast.AST],
        orelse: Iterable[ast.AST],
        is_main: bool = False,
    ) -> None:
        is_check = self._is_check(test)
        self.guards += 1
        self.depth += is_main
        self.checks += is_check
        self.visit_all(body)
        self.checks -= is_check
        self.depth -= is_main
        self.visit_all(orelse)
        self.guards -= 1

    def _visit_try(self, node: ast.Try | ast.TryStar) -> None:
        # `try: ... finally:` lets every error through.
        is_guard = bool(node.handlers)
        self.guards += is_guard
        self.tries += is_guard
        self.visit_all(node.body)
        self.tries -= is_guard
        for handler in node.handlers:
            self.visit_all(handler.body)
        self.guards -= is_guard
        self.visit_all((*node.orelse, *node.finalbody))

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = ""
        if isinstance(node, ast.ImportFrom):
            prefix = self.module.absolute(node)
        for alias in node.names:
            name = join_names(prefix, alias.name)
            is_own = is_gpu_package(name) and self.interpreter.project.is_own_package(
                name, self.module
            )
            self.report(Import(node, name, self.guards > 0, self.depth == 0, is_own))

    # --- names ---

    def _visit_call(self, node: ast.Call) -> None:
        callee = self._library_name(node.func)
        if callee:
            self._report_use(node, callee, node)
        # Only the decorator itself counts as one, not the arguments of its call.
        was_in_decorator = self.in_decorator
        self.in_decorator = False
        match node.func:
            # Of `f(x).cuda` only the method has been reported.
            case ast.Attribute(value=value) if callee.startswith("."):
                self.visit(value)
            # Of `torch.cuda.synchronize` the whole.
            case ast.Name() | ast.Attribute():
                pass
            case function:
                self.visit(function)
        for argument in node.args:
            self._visit_value(argument, "argument", callee)
        for keyword in node.keywords:
            self._visit_value(keyword.value, f"keyword {keyword.arg}", callee)
        self.in_decorator = was_in_decorator

    def _visit_attribute(self, node: ast.Attribute) -> None:
        name = self._library_name(node)
        if name and not name.startswith("."):
            self._report_use(node, name)
        else:
            self.visit(node.value)

    def _visit_name(self, node: ast.Name) -> None:
        # The binding of an import is a tuple.
        if isinstance(node.ctx, ast.Load) and isinstance(
            self.module.names.get(node.id), tuple
        ):
            self._report_use(node, self.module.dotted(node))

    def _report_use(
        self, node: ast.AST, name: str, call: ast.Call | None = None
    ) -> None:
        self.report(
            Use(node, name, call, **self._circumstances, decorator=self.in_decorator)
        )

    def _library_name(self, node: ast.expr) -> str:
        """Dotted name through imports, `.method` for a method of anything else, "" for
        local names.
        """
        head = node
        while isinstance(head, ast.Attribute):
            head = head.value
        # The binding of an import is a tuple.
        if isinstance(head, ast.Name) and isinstance(
            self.module.binding(head.id), tuple
        ):
            return self.module.dotted(node)
        return f".{node.attr}" if isinstance(node, ast.Attribute) else ""

    # --- device strings ---

    def _visit_constant(
        self, node: ast.Constant, role: str = "other", callee: str = ""
    ) -> None:
        if isinstance(node.value, str) and _DEVICE.match(node.value):
            self.report(Text(node, node.value, role, callee, **self._circumstances))

    def _visit_formatted_text(
        self, node: ast.JoinedStr, role: str = "other", callee: str = ""
    ) -> None:
        """`f"cuda:{rank}"`."""
        match node.values:
            case [ast.Constant(value="cuda" | "cuda:"), *_]:
                self.report(Text(node, "cuda", role, callee, **self._circumstances))
        self.visit_all(node.values)

    def _visit_comparison(self, node: ast.Compare) -> None:
        for operand in (node.left, *node.comparators):
            self._visit_value(operand, "compare")

    def _visit_assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names_device = any(
            _DEVICE_NAME.search(_last_name(target)) for target in targets
        )
        self._visit_value(node.value, "assign" if names_device else "other")

    def _visit_value(self, node: ast.expr, role: str, callee: str = "") -> None:
        """Report a device string, or walk over any other expression."""
        match node:
            case ast.Constant():
                self._visit_constant(node, role, callee)
            case ast.JoinedStr():
                self._visit_formatted_text(node, role, callee)
            case _:
                self.visit(node)


_VISITORS: Final[dict[type, Any]] = {
    ast.FunctionDef: _Scan._visit_function,
    ast.AsyncFunctionDef: _Scan._visit_function,
    ast.ClassDef: _Scan._visit_class,
    ast.Lambda: _Scan._visit_lambda,
    ast.If: _Scan._visit_if,
    ast.IfExp: _Scan._visit_conditional_expression,
    ast.Try: _Scan._visit_try,
    ast.TryStar: _Scan._visit_try,
    ast.Import: _Scan._visit_import,
    ast.ImportFrom: _Scan._visit_import,
    ast.Call: _Scan._visit_call,
    ast.Attribute: _Scan._visit_attribute,
    ast.Name: _Scan._visit_name,
    ast.Constant: _Scan._visit_constant,
    ast.Compare: _Scan._visit_comparison,
    ast.Assign: _Scan._visit_assignment,
    ast.AnnAssign: _Scan._visit_assignment,
}
