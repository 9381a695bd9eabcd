"""From a file to raw findings: the interpretation of what is traced, and the scan of
everything else.
"""

import ast
import dataclasses
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from tpuport.base.mappings import group_by
from tpuport.base.temporary import garbage_collection_off
from tpuport.lint import scenarios
from tpuport.lint.abstract_values import (
    TENSOR,
    UNKNOWN,
    Function,
    Instance,
    Partial,
    Sequence,
    Value,
    class_of,
    is_tensor,
)
from tpuport.lint.components import component_methods
from tpuport.lint.diagnostics import make_finding
from tpuport.lint.entry_verdicts import Stop, TracedEntry, key_of
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.interpreter import TracingInterpreter
from tpuport.lint.interpreter.call_record import Record
from tpuport.lint.interpreter.compiled_methods import LOOPS, is_compiled_method
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo
from tpuport.lint.patterns import matches_function
from tpuport.lint.project import Project
from tpuport.lint.rules.rule import Rule
from tpuport.lint.scanner import Scanner
from tpuport.lint.scope_statements import all_nodes
from tpuport.lint.source import SourceFile, contains
from tpuport.lint.traced_functions import (
    COMPILERS,
    EntryPoint,
    decorated_functions,
    entry_point,
    errors_of,
    nested_functions,
    position,
    stopped_entries,
    traced_name,
)
from tpuport.lint.work import WorkLimitError, meter

_COMPILED_ARGUMENTS: Final = frozenset({"model", "fun", "func"})
# A file without one of these words is not searched for compilers; `re.compile` is too
# common to count.
_MAY_COMPILE: Final = re.compile(r"\b(?:jit|jax_jit|trace|(?<!\bre\.)compile)\b")
# A file without one of these demands no package that needs a GPU.
_MAY_DEMAND: Final = re.compile(r"_(available|installed)\b|\b(?i:has|have)_")
# A file with none of these has no match of the expressions, which take far longer.
_COMPILES: Final = ("jit", "trace", "compile")
_DEMANDS: Final = ("_available", "_installed", "has_", "have_")
_HOOKS: Final = frozenset({"register_forward_hook", "register_forward_pre_hook"})
# diffusers calls an attention processor instead of the attention module's own forward.
_PROCESSOR: Final = re.compile(r"(Attn|Attention)Processor")
# A call in the linted code costs some thirty calls here, and may be forty deep.
_RECURSION_LIMIT: Final = 20_000


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the analysis depends on, besides the files.

    Attributes:
        rules: the rules to apply.
        torchax: version that the code will run with.
        entry_points: patterns of further functions that are traced:
            `package.module:Class.method`, `Class.method`, `function`, with `*`.
        training: the model is traced in training mode too; otherwise `self.training` is
            false.
        patched: patterns of functions that a patch replaces, and that are not traced.
    """

    rules: tuple[Rule, ...]
    torchax: tuple[int, ...] = (0, 0, 13)
    entry_points: tuple[str, ...] = ()
    training: bool = False
    patched: tuple[str, ...] = ()


@dataclasses.dataclass(slots=True)
class Outcome:
    """The result of one file.

    Attributes:
        findings: with absolute paths and the rules' own severities; some may lie in
            files reached from this one.
        dependencies: absolute paths that the analysis looked at, including those that
            do not exist.
        entry_points: number of entry points in this file.
        traced: `path:qualname` of each function that tracing reaches from them.
        entries: the model classes and compiled functions of this file, with the errors
            that stop them.
    """

    findings: list[Finding]
    dependencies: tuple[str, ...]
    entry_points: int
    traced: frozenset[str]
    entries: tuple[TracedEntry, ...] = ()


class Analyser:
    """Analyses files one after another, and remembers what they share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION_LIMIT))
        self._reset()

    def _reset(self) -> None:
        self._project = Project()
        self._interpreter = TracingInterpreter(self._project, self.options)
        self._scanner = Scanner(self._interpreter)

    def analyse(self, source: SourceFile) -> Outcome:
        """The findings reached from the entry points in this file, and those in the
        rest of its text.

        Where that takes too much work, the findings so far and one that says so.
        """
        meter.reset()
        try:
            with garbage_collection_off():
                return self._analyse_module(self._project.add(source))
        except BaseException:
            # The next file must not take half an interpretation for a whole one.
            self._reset()
            raise

    def _analyse_module(self, module: ModuleInfo) -> Outcome:
        record = self._interpreter.start_file(module)
        entry_points: dict[EntryPoint, None] = {}
        try:
            entry_points.update(dict.fromkeys(self._entry_points(module)))
            entries = self._interpret(module, entry_points, record)
        except WorkLimitError as error:
            self._interpreter.stop_recording_calls()
            finding = _cut_off_finding(module, error)
            record.findings[finding.rule, finding.path] = finding
            entries = stopped_entries(entry_points, finding)
        self._interpreter.stop_recording()
        self._interpreter.forget_calls()
        path = str(module.path)
        dependencies = self._project.dependencies({path, *record.consulted}) - {path}
        if meter.is_exhausted or meter.cuts:
            # The next file must not take half an interpretation for a whole one.
            self._reset()
        return Outcome(
            findings=sorted(record.findings.values()),
            dependencies=tuple(sorted(dependencies)),
            entry_points=len(entry_points),
            traced=frozenset(traced_name(function) for function, _ in record.traced),
            entries=entries,
        )

    def _interpret(
        self, module: ModuleInfo, entry_points: Iterable[EntryPoint], record: Record
    ) -> tuple[TracedEntry, ...]:
        """Add what a file results in to its record; the entry points with the errors
        that stop them.
        """
        records: dict[EntryPoint, Record] = {}
        for function, receiver in entry_points:
            # An outer model has called this one with real arguments, which are better
            # than declared ones.
            if (function, class_of(receiver)) not in record.traced:
                entry_record = scenarios.interpret(
                    self._interpreter, function, receiver
                )
                records[EntryPoint(function, receiver)] = entry_record
                record.absorb(entry_record)
            else:
                record.absorb(
                    scenarios.interpret_defaults(self._interpreter, function, receiver)
                )
        for function, receiver in self._hooks(module):
            record.absorb(self._interpret_hook(function, receiver))
        for function, receiver in self._loops(module):
            loop = scenarios.interpret_loop(
                self._interpreter, function, receiver, record.findings
            )
            record.absorb(loop)
        for function, receiver in self._steps(module):
            step = scenarios.interpret_step(self._interpreter, function, receiver)
            if self._is_configured(function):
                record.absorb(step)
            else:
                _add_warnings(record, step)
        if (
            module.unavailable
            or module.missing
            or contains(module.lines, _MAY_DEMAND, _DEMANDS)
        ):
            for constructor, receiver in self._constructors(module):
                record.absorb(
                    self._interpreter.interpret_constructor(constructor, receiver)
                )
        # In the order of the text, since a set has none that two runs share.
        traced = sorted({function for function, _ in record.traced}, key=position)
        for function in traced:
            self._scanner.scan_traced(function)
        self._scanner.scan_rest(module, {function.node for function in traced})
        return self._entries(module, entry_points, records, record.findings.values())

    def _entries(
        self,
        module: ModuleInfo,
        entry_points: Iterable[EntryPoint],
        records: dict[EntryPoint, Record],
        findings: Iterable[Finding],
    ) -> tuple[TracedEntry, ...]:
        """The entry points by class or function, each with the keys of the errors that
        stop it.
        """
        stops = [finding for finding in findings if finding.stops_trace]
        # The scanner knows functions and no calls.
        scanned = group_by(
            (finding for finding in stops if finding.rule.startswith("TPU3")),
            lambda finding: f"{finding.path}:{finding.function}",
        )
        stops_of: dict[tuple[str, int], dict[str, str]] = {}
        for entry in entry_points:
            definition = class_of(entry.receiver) or entry.function
            own = stops_of.setdefault((definition.qualname, definition.node.lineno), {})
            # Most files have no errors, and need no look at what their entry points
            # reach.
            if stops:
                is_forward = entry.function.name == "forward" or not self._has_forward(
                    entry
                )
                for finding in errors_of(
                    module, entry, self._reached(entry, records), scanned
                ):
                    scenario = finding.scenario or (
                        "" if is_forward else entry.function.qualname
                    )
                    # Whoever asks for a class asks for its forward first.
                    known = own.get(key_of(finding), scenario)
                    own[key_of(finding)] = scenario if is_forward else known
        return tuple(
            TracedEntry(
                *definition, tuple(itertools.starmap(Stop, sorted(own.items())))
            )
            for definition, own in sorted(stops_of.items())
        )

    def _has_forward(self, entry: EntryPoint) -> bool:
        owner = class_of(entry.receiver)
        return (
            owner is not None
            and self._interpreter.classes.method(owner, "forward") is not None
        )

    def _reached(self, entry: EntryPoint, records: dict[EntryPoint, Record]) -> Record:
        """What an entry point results in, each finding with the calls of this entry
        point that have it.
        """
        if entry in records:
            return records[entry]
        # Another entry point has called it, whose scenarios are not this one's.
        reached = Record()
        for call in self._interpreter.calls_of(
            entry.function, class_of(entry.receiver)
        ).values():
            reached.absorb(call)
        stops = {
            key: finding
            for key, finding in reached.findings.items()
            if finding.stops_trace
        }
        if stops:
            reached.findings = scenarios.findings_with_scenarios(
                self._interpreter, *entry, stops
            )
        return reached

    # --- entry points ---

    def _entry_points(self, module: ModuleInfo) -> Iterator[EntryPoint]:
        # Files define their parts first and the whole last; the whole calls its parts
        # with real arguments.
        yield from self._model_methods(module)
        if contains(module.lines, _MAY_COMPILE, _COMPILES):
            nested = nested_functions(module)
            yield from decorated_functions(module, nested)
            yield from self._functions_passed_to_compilers(module, nested)
        yield from self._configured_functions(module)
        yield from component_methods(self._interpreter, module)

    def _model_methods(self, module: ModuleInfo) -> Iterator[EntryPoint]:
        """The forward of each module, and the `__call__` of each attention
        processor.
        """
        for info in itertools.filterfalse(
            self._interpreter.classes.is_replaced, reversed(module.classes)
        ):
            for method in self._traced_methods(info):
                yield EntryPoint(method, Instance(info))
            yield from self._coding_methods(info)

    def _coding_methods(self, info: ClassInfo) -> Iterator[EntryPoint]:
        """`encode`, `decode`, `encode_image` and the like, of tensors; other classes
        encode texts on the host.
        """
        if not self._interpreter.classes.is_module(info):
            return
        for name in sorted(
            filter(is_compiled_method, info.methods.keys() - {"forward"})
        ):
            method, receiver = info.methods[name], Instance(info)
            if _runs_loop(method):
                continue
            values = self._interpreter.declared_parameters(method, receiver).values()
            if any(map(is_tensor, itertools.islice(values, 1, 2))):
                yield EntryPoint(method, receiver)

    def _hooks(self, module: ModuleInfo) -> Iterator[EntryPoint]:
        """What is registered to run before and after a module's forward, and is traced
        with it.
        """
        if not any("register_forward" in line for line in module.lines):
            return
        nested = {info.name: info for info in nested_functions(module).values()}
        for node in all_nodes(module.tree):
            match node:
                case ast.Call(func=ast.Attribute(attr=name), args=[hook, *_]) if (
                    name in _HOOKS
                ):
                    yield from self._compiled_functions(module, hook, nested)

    def _interpret_hook(self, function: FunctionInfo, receiver: Value | None) -> Record:
        """A hook's arguments: the module, the tuple of the module's own arguments, for
        some the module's output.
        """
        declared = self._interpreter.declared_parameters(function, receiver)
        names = [name for name in declared if name not in {"self", "cls"}]
        if len(names) > 1:
            declared[names[1]] = Sequence("tuple", None, TENSOR)
        # Most modules give a tensor; with the option `with_kwargs`, keyword arguments
        # come before it.
        if len(names) > 2 and "kw" not in names[-1] and declared[names[-1]] is UNKNOWN:
            declared[names[-1]] = TENSOR
        return self._interpreter.interpret_call(function, receiver, declared)

    def _loops(self, module: ModuleInfo) -> Iterator[EntryPoint]:
        """What runs on the host and calls models: `generate` and `sample` of modules,
        `__call__` of pipelines.
        """
        classes = self._interpreter.classes
        for info in module.classes:
            names = {"__call__"} if info.node.name.endswith("Pipeline") else LOOPS
            for name in sorted(names & info.methods.keys()):
                if name == "__call__" or classes.is_module(info):
                    yield EntryPoint(info.methods[name], Instance(info))

    def _steps(self, module: ModuleInfo) -> Iterator[tuple[FunctionInfo, Instance]]:
        """The `step` of each scheduler in this file, which loops on the host call, and
        some compile.
        """
        classes = self._interpreter.classes
        for info in module.classes:
            is_scheduler = (
                "step" in info.methods
                and classes.method(info, "set_timesteps") is not None
            )
            if is_scheduler and not classes.is_module(info):
                yield info.methods["step"], Instance(info)

    def _constructors(self, module: ModuleInfo) -> Iterator[EntryPoint]:
        """The constructors of this file's model classes."""
        for info in filter(self._interpreter.classes.is_module, module.classes):
            if "__init__" in info.methods:
                yield EntryPoint(info.methods["__init__"], Instance(info))

    def _traced_methods(self, info: ClassInfo) -> Iterator[FunctionInfo]:
        classes = self._interpreter.classes
        if classes.is_module(info):
            yield from (function.info for function in classes.forwards(info))
        elif _PROCESSOR.search(info.node.name) and "__call__" in info.methods:
            yield info.methods["__call__"]

    def _functions_passed_to_compilers(
        self, module: ModuleInfo, nested: dict[ast.AST, FunctionInfo]
    ) -> Iterator[EntryPoint]:
        nested_by_name = {info.name: info for info in nested.values()}
        for node in all_nodes(module.tree):
            match node:
                case ast.Call(func=function, args=arguments, keywords=keywords) if (
                    module.dotted(function) in COMPILERS
                ):
                    named = [
                        keyword.value
                        for keyword in keywords
                        if keyword.arg in _COMPILED_ARGUMENTS
                    ]
                    for argument in [*arguments, *named][:1]:
                        yield from self._compiled_functions(
                            module, argument, nested_by_name
                        )

    def _compiled_functions(
        self,
        module: ModuleInfo,
        argument: ast.expr,
        nested_by_name: dict[str, FunctionInfo],
    ) -> Iterator[EntryPoint]:
        """The functions that an argument of a compiler may be."""
        match argument:
            case ast.Lambda():
                yield EntryPoint(FunctionInfo(argument, module, None, ""))
                return
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield from self._method_of_enclosing_class(module, argument, name)
                return
        value = self._interpreter.module_expression(module, argument)
        while isinstance(value, Partial):
            value = value.target
        if isinstance(value, Function):
            yield entry_point(value.info)
        elif isinstance(argument, ast.Name) and argument.id in nested_by_name:
            yield EntryPoint(nested_by_name[argument.id])

    def _method_of_enclosing_class(
        self, module: ModuleInfo, node: ast.expr, name: str
    ) -> Iterator[EntryPoint]:
        """`self.name` in the class around a node."""
        # Inner classes come first in the list.
        for info in module.classes:
            if info.node.lineno <= node.lineno <= (info.node.end_lineno or 0):
                method = self._interpreter.classes.method(info, name)
                if method is not None:
                    yield EntryPoint(method, Instance(info))
                return

    def _configured_functions(self, module: ModuleInfo) -> Iterator[EntryPoint]:
        """Functions and methods that a pattern of the settings matches."""
        yield from map(
            entry_point, filter(self._is_configured, module.functions_and_methods)
        )

    def _is_configured(self, function: FunctionInfo) -> bool:
        patterns = self.options.entry_points
        return any(
            matches_function(pattern, function.module.path, function.qualname)
            for pattern in patterns
        )


def _add_warnings(record: Record, reached: Record) -> None:
    """Add the errors of code that may be compiled or run on the host: as warnings, for
    the second kind of loop.
    """
    for key, finding in reached.findings.items():
        if finding.stops_trace:
            record.add(key, dataclasses.replace(finding, severity=Severity.WARNING))
    record.consulted |= reached.consulted


def _cut_off_finding(module: ModuleInfo, error: WorkLimitError) -> Finding:
    """What tells that the analysis of a file has ended before its end."""
    innermost = error.route[-1] if error.route else "the module"
    why = "after as much work as five of the largest models take"
    if meter.tokens > meter.most_tokens:
        why = f"where it had read modules with more than {meter.most_tokens:,} names, numbers, strings and signs"
    reason = f"the analysis was cut off in `{innermost}`, {why}"
    finding = make_finding(
        "TPU007",
        str(module.path),
        reason,
        line=error.line if error.path == str(module.path) else 1,
    )
    return dataclasses.replace(
        finding, function=innermost if error.route else "", route=error.route
    )


def _runs_loop(method: FunctionInfo) -> bool:
    """Whether a method calls `generate` or `sample`, which run on the host."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LOOPS
        for node in all_nodes(method.node)
    )
