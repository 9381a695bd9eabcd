"""The interpreter as a whole: calls with memory, module-level names, constructors, and the rules' ears."""

import ast
import dataclasses
from typing import Any, Final

from tpuport.lint.abstract_values import (
    NONE,
    STATIC,
    UNKNOWN,
    External,
    Function,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    join,
    tensor,
)
from tpuport.lint.events import Event, FunctionEntry
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.interpreter import builtin, expressions, parameters, statements
from tpuport.lint.interpreter.classes import NOT_BUILT, Classes
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo
from tpuport.lint.project import Binding, Project
from tpuport.lint.rules.rule import Context, Hit, Rule
from tpuport.lint.source import node_span

_DEPTH: Final = 40
_CONTEXTS: Final = 8


@dataclasses.dataclass
class _Kept:
    """What an interpreted call gave.

    Attributes:
        result: its value.
        findings: by rule and place.
        traced: the functions that it traced, itself among them.
        reached: those with the class of the object that each was called on, or None.
        consulted: files whose functions were interpreted.
    """

    result: Value
    findings: dict[tuple[Any, ...], Finding]
    traced: set[tuple[ModuleInfo, FunctionInfo]]
    reached: set[tuple[FunctionInfo, ClassInfo | None]]
    consulted: set[str]


class Machine:
    """Interprets functions and tells the rules.

    Attributes:
        project: finds modules.
        options: `analysis.Options`.
        classes: what is known of classes.
        activity: findings, traced functions and consulted files of what is being interpreted, innermost last.
    """

    def __init__(self, project: Project, options: Any) -> None:
        self.project = project
        self.options = options
        self.classes = Classes(self)
        self._listeners: dict[type[Event], list[Rule]] = {}
        for rule in options.rules:
            for event in rule.events:
                self._listeners.setdefault(event, []).append(rule)
        self._memory: dict[tuple[Any, ...], _Kept] = {}
        self._running: set[tuple[Any, ...]] = set()
        self._contexts: dict[FunctionInfo, int] = {}
        self._resolving: set[tuple[int, str]] = set()
        self._stack: list[str] = []
        self.activity: list[_Kept] = []

    # --- running ---

    def evaluate(self, frame: Frame, node: ast.expr) -> Value:
        """An expression's value, without telling the rules."""
        before, frame.emitting = frame.emitting, False
        try:
            return expressions.evaluate(frame, node)
        finally:
            frame.emitting = before

    def start(self) -> _Kept:
        """Begin to note findings, traced functions and consulted files."""
        self.activity.append(_Kept(UNKNOWN, {}, set(), set(), set()))
        return self.activity[-1]

    def finish(self) -> _Kept:
        """Stop noting; what was noted goes to the enclosing activity as well."""
        kept = self.activity.pop()
        if self.activity:
            self._absorb(kept)
        return kept

    def _absorb(self, kept: _Kept) -> None:
        outer = self.activity[-1]
        for key, finding in kept.findings.items():
            known = outer.findings.get(key)
            if known is None or _worse(finding.severity, known.severity):
                outer.findings[key] = finding
        outer.traced |= kept.traced
        outer.reached |= kept.reached
        outer.consulted |= kept.consulted

    def entry(self, info: FunctionInfo, receiver: Value | None) -> None:
        """Interpret an entry point with its declared parameters."""
        values = self._bind(info, receiver, None, {}, entry=True)
        self._remembered(info, receiver, values, emitting=True, entry=True, depth=0)

    def call_declared(self, function: Function, caller: Frame, entry: bool = False) -> Value:
        """Interpret a function of which only the definition is known, since something unknown calls it.

        `entry`: it is handed an entry point's own arguments, so its parameters' names count as evidence too.
        """
        values = self._bind(function.info, function.bound, None, {}, entry=entry)
        return self._remembered(
            function.info, function.bound, values, caller.emitting, False, caller.depth + 1
        )

    def call_function(
        self,
        info: FunctionInfo,
        bound: Value | None,
        args: list[Value],
        keywords: dict[str, Value],
        caller: Frame,
    ) -> Value:
        """What calling a function of the linted code gives."""
        values = self._bind(info, bound, args, keywords, entry=False)
        if caller.building is not None and bound is not None and bound == caller.receiver:
            own = info.module is caller.module or info.qualname.endswith("__init__")
            if not own or (info.owner is not None and info.owner.node.name in NOT_BUILT):
                # What a base class of another file does after construction (weights, hooks) sets no attribute we need.
                return self.returned_type(info)
            return self._run(info, bound, values, caller.emitting, False, caller.depth + 1, caller.building)
        return self._remembered(info, bound, values, caller.emitting, False, caller.depth + 1)

    def build(
        self,
        init: FunctionInfo,
        instance: Value,
        found: dict[str, Value],
        args: list[Value] | None = None,
        keywords: dict[str, Value] | None = None,
        caller: Frame | None = None,
    ) -> None:
        """Interpret a constructor; the attributes it sets go to `found`."""
        values = self._bind(init, instance, args, keywords or {}, entry=False)
        depth = caller.depth + 1 if caller else 1
        self._run(init, instance, values, caller is not None and caller.emitting, False, depth, found)

    def _remembered(
        self,
        info: FunctionInfo,
        bound: Value | None,
        values: dict[str, Value],
        emitting: bool,
        entry: bool,
        depth: int,
    ) -> Value:
        closure = info.__dict__.get("closure")
        # A nested function's meaning depends on the frame around it, which changes.
        key = (info, bound, emitting, entry, tuple(values.items()), id(closure))
        if closure is None and (kept := self._memory.get(key)) is not None:
            if self.activity:
                self._absorb(kept)
            return kept.result
        if key in self._running or depth > _DEPTH:
            return self.returned_type(info)
        self._running.add(key)
        kept = self.start()
        try:
            kept.result = self._run(info, bound, values, emitting, entry, depth, None)
        finally:
            self._running.discard(key)
            self.finish()
        if closure is None:
            self._memory[key] = kept
        return kept.result

    def _run(
        self,
        info: FunctionInfo,
        bound: Value | None,
        values: dict[str, Value],
        emitting: bool,
        entry: bool,
        depth: int,
        building: dict[str, Value] | None,
    ) -> Value:
        if depth > _DEPTH:
            return self.returned_type(info)
        frame = Frame(self, info.module, info, info.owner, None, info.__dict__.get("closure"), depth)
        frame.emitting, frame.entry, frame.building = emitting, entry, building
        frame.env = dict(values)
        if info.owner is not None and frame.parent is None and values and not info.is_a("staticmethod"):
            frame.self_name = next(iter(values))
            frame.receiver = bound if bound is not None else values[frame.self_name]
        elif frame.parent is not None:
            frame.self_name, frame.receiver = frame.parent.self_name, frame.parent.receiver
        if self.activity:
            self.activity[-1].consulted.add(str(info.module.path))
            if emitting:
                self.activity[-1].traced.add((info.module, info))
                self.activity[-1].reached.add((info, bound.info if isinstance(bound, Instance) else None))
        self._stack.append(info.qualname)
        try:
            if emitting:
                frame.tell(FunctionEntry(info.node, info, entry, values))
            return self._body(frame, info)
        finally:
            self._stack.pop()

    def _body(self, frame: Frame, info: FunctionInfo) -> Value:
        if isinstance(info.node, ast.Lambda):
            return expressions.evaluate(frame, info.node.body)
        goes_on = statements.block(frame, info.node.body)
        if frame.yielded is not None:
            return statements.yielded(frame)
        result = frame.returned
        if result is None:
            result = NONE if goes_on else UNKNOWN
        elif goes_on:
            result = join(result, NONE)
        if result is UNKNOWN or (isinstance(result, Static) and info.node.returns is not None):
            said = self.annotation(info.node.returns, info.module)
            return said if said is not UNKNOWN and result is UNKNOWN else result
        return result

    def returned_type(self, info: FunctionInfo) -> Value:
        """What a function's annotation says it returns."""
        return (
            UNKNOWN if isinstance(info.node, ast.Lambda) else self.annotation(info.node.returns, info.module)
        )

    # --- parameters ---

    def _bind(
        self,
        info: FunctionInfo,
        bound: Value | None,
        args: list[Value] | None,
        keywords: dict[str, Value],
        entry: bool,
    ) -> dict[str, Value]:
        given = info.node.args
        positional = [*given.posonlyargs, *given.args]
        values: dict[str, Value] = {}
        rest = list(args or ())
        if bound is not None and positional and not info.is_a("staticmethod"):
            values[positional[0].arg] = bound
            positional = positional[1:]
        # Too many ways to call one function: take what its definition says, once.
        crowded = (
            args is not None and self._contexts.get(info, 0) >= _CONTEXTS and "closure" not in info.__dict__
        )
        for arg in [*positional, *given.kwonlyargs]:
            value = None
            if rest and arg not in given.kwonlyargs:
                value = rest.pop(0)
            elif arg.arg in keywords:
                value = keywords[arg.arg]
            values[arg.arg] = self._parameter(info, arg, None if crowded else value, args is not None, entry)
        if given.vararg:
            values[given.vararg.arg] = self._variadic(info, given.vararg, rest, args is None)
        if given.kwarg:
            named = {arg.arg for arg in parameters.names(info)}
            extra = tuple((key, _general(value)) for key, value in keywords.items() if key not in named)
            values[given.kwarg.arg] = Mapping(extra, UNKNOWN)
        if args is not None:
            self._contexts[info] = self._contexts.get(info, 0) + 1
        return values

    def _variadic(self, info: FunctionInfo, arg: ast.arg, rest: list[Value], declared: bool) -> Value:
        if declared:
            return Sequence("tuple", None, self.annotation(arg.annotation, info.module))
        items = tuple(_general(value) for value in rest)
        element = items[0] if items else UNKNOWN
        for item in items[1:]:
            element = join(element, item)
        return Sequence("tuple", items, element)

    def _parameter(
        self, info: FunctionInfo, arg: ast.arg, value: Value | None, called: bool, entry: bool
    ) -> Value:
        if value is not None and value is not UNKNOWN:
            return _general(value)
        if value is None and called:
            default = parameters.defaults(info).get(arg.arg)
            if default is not None:
                known = self.module_expression(info.module, default)
                if known is not UNKNOWN:
                    return _general(known)
        return parameters.declared(self, info, arg, entry)

    # --- names ---

    def annotation(self, node: ast.expr | None, module: ModuleInfo) -> Value:
        """What an annotation promises."""
        if node is None:
            return UNKNOWN
        kept: dict[ast.expr, Value] = module.__dict__.setdefault("annotations", {})
        if node not in kept:
            kept[node] = UNKNOWN
            kept[node] = parameters.annotation(self, node, module)
        return kept[node]

    def module_expression(self, module: ModuleInfo, node: ast.expr) -> Value:
        """An expression evaluated among a module's names."""
        return expressions.evaluate(Frame(self, module), node)

    def global_name(self, module: ModuleInfo, name: str) -> Value:
        """A module-level or built-in name."""
        kept: dict[str, Value] = module.__dict__.setdefault("values", {})
        value = kept.get(name)
        if value is None:
            key = (id(module), name)
            if key in self._resolving:
                return UNKNOWN
            self._resolving.add(key)
            value = self._find_global(module, name)
            self._resolving.discard(key)
            kept[name] = value
        return value

    def _find_global(self, module: ModuleInfo, name: str) -> Value:
        found = self.project.lookup(module, name)
        if isinstance(found, ast.expr):
            value = self.module_expression(module, found)
            # A module's flag may be set by whoever imports it.
            return (
                Static(value.kind)
                if isinstance(value, Static) and isinstance(value.constant, bool)
                else value
            )
        if found is not None:
            return self.settled(found)
        if name in builtin.NAMES or name in {"int", "float", "bool", "str", "complex"}:
            return External(f"builtins.{name}")
        if name.startswith("__") or name.endswith(
            ("Error", "Warning", "Exception", "Iteration", "Interrupt")
        ):
            return STATIC
        return UNKNOWN

    def settled(self, value: Value) -> Value:
        """The value itself, where it stood for a name of another module."""
        return self.global_name(value.module, value.name) if isinstance(value, Binding) else value

    # --- rules ---

    def hear(self, frame: Frame, event: Event) -> None:
        """Ask the rules that listen to this kind of event, and note their findings."""
        self.ask(event, frame.module, frame.qualname, frame.owner)

    def ask(self, event: Event, module: ModuleInfo, function: str, owner: ClassInfo | None) -> None:
        """As `hear`, for an event in a function (its qualified name) of a class, or of none."""
        listeners = self._listeners.get(type(event))
        if listeners is None:
            return
        context = self._context(module, function, owner)
        for rule in listeners:
            answer = rule.check(event, context)
            if answer is not None:
                for hit in (answer,) if isinstance(answer, Hit) else answer:
                    self._note(rule, hit, event.node, module, function)

    def _context(self, module: ModuleInfo, function: str, owner: ClassInfo | None) -> Context:
        """What rules may know of a place."""
        kept = module.__dict__.setdefault("contexts", {})
        known = kept.get(function)
        if known is None:
            known = kept[function] = Context(
                function, owner, self.options.torchax, module.lines, str(module.path), self.options.training
            )
        return known

    def _note(self, rule: Rule, hit: Hit, node: ast.AST, module: ModuleInfo, function: str) -> None:
        """Keep a finding of the running activity."""
        line, column, end_line, end_column = node_span(hit.node or node, module.lines)
        key = (rule.id, str(module.path), line, column)
        findings = self.activity[-1].findings
        known = findings.get(key)
        severity = hit.severity or rule.severity
        if known is not None and not _worse(severity, known.severity):
            return
        findings[key] = Finding(
            path=str(module.path),
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            rule=rule.id,
            severity=severity,
            reason=hit.reason or rule.reason,
            remedy=hit.remedy or rule.remedy,
            function=function,
            route=tuple(self._stack),
            fix=rule.fix if hit.fix is None else hit.fix,
            stops=hit.stops,
        )

    def listens(self, event: type[Event]) -> bool:
        """Whether any rule wants this kind of event."""
        return event in self._listeners

    def forget(self) -> None:
        """Drop what is remembered of calls.

        Done after each file: how exactly a function is interpreted depends on how often it was called before, and a
        file's findings must not depend on the files before it.
        """
        self._memory.clear()
        self._contexts.clear()


def _worse(one: Severity, other: Severity) -> bool:
    order = list(Severity)
    return order.index(one) < order.index(other)


def _general(value: Value) -> Value:
    """An argument without what would make one more way of calling the same function."""
    if isinstance(value, Tensor):
        return tensor(
            value.dtype, "", -1, value.optional, False, value.origin if value.origin == "mask" else ""
        )
    if isinstance(value, Static) and value.constant is not ... and value.kind in {"int", "float"}:
        return Static(value.kind)
    return value
