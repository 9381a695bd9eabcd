"""From a file to raw findings: what in it is traced, interpreted for the rules, and the scan of all the rest."""

import ast
import dataclasses
import fnmatch
import re
import sys
from collections.abc import Iterator

from tpuport.lint.findings import Finding
from tpuport.lint.interpreter import Machine
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo
from tpuport.lint.project import Project
from tpuport.lint.rules.rule import Rule
from tpuport.lint.scanner import Scanner
from tpuport.lint.source import SourceFile
from tpuport.lint.values import Instance, Value

# Functions given to one of these, or decorated with one, are traced.
_COMPILERS = frozenset(
    "torch.compile tpuport.compile jax.jit torchax.interop.jax_jit torchax.compile torch.jit.trace torch_xla2.interop.jax_jit".split()
)
# diffusers calls an attention processor in the place of the attention module's own forward.
_PROCESSOR = re.compile(r"(Attn|Attention)Processor")


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
        self._project = Project()
        self._machine = Machine(self._project, options)
        self._scanner = Scanner(self._machine)

    def analyse(self, source: SourceFile) -> Outcome:
        """Findings from the entry points in this file, and of the rest of its text."""
        machine = self._machine
        self._project.consulted = set()
        module = self._project.add(source)
        kept = machine.start()
        count = 0
        try:
            for info, receiver in self._entries(module):
                count += 1
                # What an outer model calls with real arguments needs no guess at them.
                if (module, info) not in kept.traced:
                    machine.entry(info, receiver)
            for owner, function in list(kept.traced):
                self._scanner.traced(owner, function)
            traced_here = {function.qualname for owner, function in kept.traced if owner is module}
            self._scanner.file(module, traced_here)
        finally:
            machine.finish()
            machine.forget(module)
        consulted = kept.consulted | self._project.consulted
        consulted.discard(str(module.path))
        return Outcome(
            sorted(kept.findings.values()),
            tuple(sorted(consulted)),
            count,
            frozenset(f"{owner.path}:{function.qualname}" for owner, function in kept.traced),
        )

    def _entries(self, module: ModuleInfo) -> Iterator[tuple[FunctionInfo, Value | None]]:
        classes = self._machine.classes
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

    def _compiled(self, module: ModuleInfo) -> Iterator[tuple[FunctionInfo, Value | None]]:
        """Functions that the code itself hands to a compiler."""
        for info in module.functions:
            if any(name in _COMPILERS for name in info.decorators):
                yield info, None
        if not any("compile" in line or "jit" in line for line in module.lines):
            return
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and node.args and module.dotted(node.func) in _COMPILERS:
                first = node.args[0]
                bound = module.names.get(first.id) if isinstance(first, ast.Name) else None
                if isinstance(bound, FunctionInfo):
                    yield bound, None

    def _configured(self, module: ModuleInfo) -> Iterator[tuple[FunctionInfo, Value | None]]:
        if not self.options.entry_points:
            return
        everything: list[tuple[FunctionInfo, ClassInfo | None]] = [(info, None) for info in module.functions]
        everything += [(method, info) for info in module.classes for method in info.methods.values()]
        for function, owner in everything:
            names = (function.qualname, f"{module.name}:{function.qualname}")
            if any(
                fnmatch.fnmatchcase(name, pattern) for pattern in self.options.entry_points for name in names
            ):
                yield function, Instance(owner) if owner else None
