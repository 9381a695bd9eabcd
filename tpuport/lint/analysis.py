"""From a file to raw findings: what in it is traced, interpreted for the rules, and the scan of all the rest."""

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator

from tpuport.lint.abstract_values import Function, Instance, Partial, Value
from tpuport.lint.findings import Finding
from tpuport.lint.interpreter import TracingInterpreter
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo, definitions
from tpuport.lint.patterns import matches_function
from tpuport.lint.project import Project
from tpuport.lint.rules.rule import Rule
from tpuport.lint.scanner import Scanner
from tpuport.lint.source import SourceFile

# Functions given to one of these, or decorated with one, are traced.
_COMPILERS = frozenset(
    "torch.compile tpuport.compile jax.jit torchax.interop.jax_jit torchax.compile torch.jit.trace"
    " torch_xla2.interop.jax_jit".split()
)
_MAY_COMPILE = re.compile(r"\bjit\b|\bjax_jit\b|(?<!\bre\.)\bcompile\b|\btrace\b")
# diffusers calls an attention processor in the place of the attention module's own forward.
_PROCESSOR = re.compile(r"(Attn|Attention)Processor")


# A function that tracing starts from, and what its `self` is.
Entry = tuple[FunctionInfo, Value | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the analysis depends on, beside the files.

    Attributes:
        rules: the rules to ask.
        torchax: version that the code is to run with.
        entry_points: patterns of further functions that are traced: `package.module:Class.method`, `Class.method`,
            `function`, with `*`.
        training: the model is traced in training mode too; otherwise `self.training` is false.
    """

    rules: tuple[Rule, ...]
    torchax: tuple[int, ...] = (0, 0, 13)
    entry_points: tuple[str, ...] = ()
    training: bool = False


@dataclasses.dataclass(slots=True)
class Outcome:
    """What one file, taken as the start, gave.

    Attributes:
        findings: with absolute paths, the rule's own severities; some may lie in files reached from this one.
        dependencies: absolute paths that were looked at, those that do not exist too.
        entry_points: number of entry points in this file.
        traced: `path:qualname` of each function that tracing reaches from them.
    """

    findings: list[Finding]
    dependencies: tuple[str, ...]
    entry_points: int
    traced: frozenset[str]


class Analyser:
    """Analyses files one after another, remembering what they share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        # A call of the linted code costs some thirty of ours, and it may be forty deep.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))
        self._begin()

    def _begin(self) -> None:
        self._project = Project()
        self._interpreter = TracingInterpreter(self._project, self.options)
        self._scanner = Scanner(self._interpreter)

    def analyse(self, source: SourceFile) -> Outcome:
        """Findings from the entry points in this file, and of the rest of its text."""
        try:
            return self._analyse(self._project.add(source))
        except BaseException:
            # What was under way would be taken for known by the next file.
            self._begin()
            raise

    def _analyse(self, module: ModuleInfo) -> Outcome:
        interpreter = self._interpreter
        kept = interpreter.start_recording()
        starts = dict.fromkeys(self._entries(module))
        for info, receiver in starts:
            # What an outer model calls with real arguments needs no guess at them.
            if (info, receiver.info if isinstance(receiver, Instance) else None) not in kept.reached:
                interpreter.interpret_entry_point(info, receiver)
        traced = sorted(
            kept.traced, key=lambda item: (str(item[0].path), item[1].node.lineno, item[1].node.col_offset)
        )
        for owner, function in traced:
            self._scanner.traced(owner, function)
        self._scanner.file(module, {function.node for owner, function in traced if owner is module})
        interpreter.stop_recording()
        interpreter.forget_calls()
        consulted = self._project.dependencies({str(module.path), *kept.consulted})
        consulted.discard(str(module.path))
        return Outcome(
            sorted(kept.findings.values()),
            tuple(sorted(consulted)),
            len(starts),
            frozenset(f"{owner.path}:{function.qualname}" for owner, function in traced),
        )

    def _entries(self, module: ModuleInfo) -> Iterator[Entry]:
        """Functions from which tracing starts, each with what its `self` is."""
        classes = self._interpreter.classes
        # Files define their parts first and the whole last; the whole is where the arguments are known best.
        for info in reversed(module.classes):
            if classes.is_replaced(info):
                continue
            if classes.is_module(info):
                forward = classes.method(info, "forward")
                if forward is not None:
                    yield forward, Instance(info)
            elif _PROCESSOR.search(info.node.name) and "__call__" in info.methods:
                yield info.methods["__call__"], Instance(info)
        yield from self._compiled(module)
        yield from self._configured(module)

    def _compiled(self, module: ModuleInfo) -> Iterator[Entry]:
        """Functions that the code itself hands to a compiler."""
        if not any(_MAY_COMPILE.search(line) for line in module.lines):
            return
        known = {info.node: info for info in module.functions}
        known |= {method.node: method for info in module.classes for method in info.methods.values()}
        inner: dict[str, FunctionInfo] = {}
        for node, prefix, around in definitions(module.tree):
            if isinstance(node, ast.ClassDef):
                continue
            info = known.get(node) or FunctionInfo(node, module, None, prefix)
            if around is not None and not isinstance(around, ast.ClassDef):
                inner[node.name] = info
            if any(_compiles(module, decorator) for decorator in node.decorator_list):
                yield _as_entry(info)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and module.dotted(node.func) in _COMPILERS:
                yield from self._handed_over(module, node, inner)

    def _handed_over(
        self, module: ModuleInfo, node: ast.Call, inner: dict[str, FunctionInfo]
    ) -> Iterator[Entry]:
        """What a call of a compiler compiles; `inner`: the file's functions inside functions, by name."""
        named = [keyword.value for keyword in node.keywords if keyword.arg in {"model", "fun", "func"}]
        for given in (node.args or named)[:1]:
            if isinstance(given, ast.Lambda):
                yield FunctionInfo(given, module, None, ""), None
                continue
            if isinstance(given, ast.Attribute) and getattr(given.value, "id", "") == "self":
                yield from self._own_method(module, node, given.attr)
                continue
            value = self._interpreter.module_expression(module, given)
            while isinstance(value, Partial):
                value = value.target
            if isinstance(value, Function):
                yield _as_entry(value.info)
            elif isinstance(given, ast.Name) and given.id in inner:
                yield inner[given.id], None

    def _own_method(self, module: ModuleInfo, node: ast.Call, name: str) -> Iterator[Entry]:
        """`self.name` at a place inside a class."""
        for info in module.classes:  # inner classes first
            if info.node.lineno <= node.lineno <= (info.node.end_lineno or 0):
                method = self._interpreter.classes.method(info, name)
                if method is not None:
                    yield method, Instance(info)
                return

    def _configured(self, module: ModuleInfo) -> Iterator[Entry]:
        if not self.options.entry_points:
            return
        everything: list[tuple[FunctionInfo, ClassInfo | None]] = [(info, None) for info in module.functions]
        everything += [(method, info) for info in module.classes for method in info.methods.values()]
        for function, owner in everything:
            patterns = self.options.entry_points
            if any(matches_function(pattern, module.path, function.qualname) for pattern in patterns):
                yield function, Instance(owner) if owner else None


def _compiles(module: ModuleInfo, decorator: ast.expr) -> bool:
    """Whether a decorator is a compiler, called with options or not, or a partial application of one."""
    if not isinstance(decorator, ast.Call):
        return module.dotted(decorator) in _COMPILERS
    name = module.dotted(decorator.func)
    if name.rpartition(".")[2] == "partial" and decorator.args:
        name = module.dotted(decorator.args[0])
    return name in _COMPILERS


def _as_entry(info: FunctionInfo) -> Entry:
    return info, Instance(info.owner) if info.owner is not None and not info.is_a("staticmethod") else None
