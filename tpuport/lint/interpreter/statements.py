"""Statements: what they bind, and whether control goes on behind them."""

import ast
from collections.abc import Callable
from typing import Any, Final

from tpuport.lint.abstract_values import NONE, UNKNOWN, Class, Function, Sequence, Static, Tensor, Value, join
from tpuport.lint.events import Arithmetic, Iterate, Returned, Subscript
from tpuport.lint.interpreter import expressions, iteration, operators, subscripts, targets, truth
from tpuport.lint.interpreter.frame import Environment, Frame, merge
from tpuport.lint.interpreter.narrowing import narrow
from tpuport.lint.modules import FunctionInfo


def block(frame: Frame, body: list[ast.stmt]) -> bool:
    """Interpret a list of statements; False if control does not reach its end."""
    for statement in body:
        frame.statement = statement
        handler = _HANDLERS.get(type(statement))
        if handler is not None and handler(frame, statement) is False:
            return False
    return True


def _expression(frame: Frame, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):
        expressions.evaluate(frame, node.value)


def _assign(frame: Frame, node: ast.Assign) -> None:
    value = expressions.evaluate(frame, node.value)
    for target in node.targets:
        targets.bind(frame, target, value, node.value)


def _annotated(frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        value = expressions.evaluate(frame, node.value)
        if value is UNKNOWN:
            value = frame.machine.annotation(node.annotation, frame.module)
        targets.bind(frame, node.target, value, node.value)


def _augmented(frame: Frame, node: ast.AugAssign) -> None:
    target = node.target
    right = expressions.evaluate(frame, node.value)
    if isinstance(target, ast.Subscript):
        base = expressions.evaluate(frame, target.value)
        indices, nodes = subscripts.indices(frame, target, base)
        if frame.emitting:
            frame.tell(Subscript(target, base, indices, nodes, True, node.op, right, node))
        targets.stored_in_container(frame, target, right)
        return
    left = expressions.evaluate(frame, target)
    result = operators.arithmetic(left, node.op, right)
    if frame.emitting:
        frame.tell(Arithmetic(node, left, node.op, right, result, inplace=True))
    targets.bind(frame, target, result, node.value)


def _return(frame: Frame, node: ast.Return) -> bool:
    value = expressions.evaluate(frame, node.value) if node.value is not None else NONE
    if frame.emitting:
        frame.tell(Returned(node, value, frame.entry, frame.info))
    frame.give(value)
    return False


def _raise(frame: Frame, node: ast.Raise) -> bool:
    # What a message formats is formatted only when the program ends anyway.
    before, frame.raising = frame.raising, True
    if node.exc is not None:
        expressions.evaluate(frame, node.exc)
    frame.raising = before
    return False


def _if(frame: Frame, node: ast.If) -> bool:
    constant = truth.truth(frame, node.test, "if")
    start = frame.env
    frame.env = dict(start)
    goes_on = False
    after: Environment | None = None
    if constant is not False:
        if narrow(frame, node.test, True) and block(frame, node.body):
            goes_on, after = True, frame.env
        frame.env = dict(start)
    if constant is not True and narrow(frame, node.test, False) and block(frame, node.orelse):
        after = frame.env if after is None else merge(after, frame.env)
        goes_on = True
    frame.env = after if after is not None else start
    return goes_on


def _loop(frame: Frame, body: Callable[[], bool]) -> None:
    """Interpret a loop's body as its first run, then as a later one where that would differ."""
    for _ in range(3):
        start = dict(frame.env)
        frame.exits.append([])
        goes_on = body()
        ends = frame.exits.pop() + ([frame.env] if goes_on else [])
        if not ends:
            # Every way through leaves the function; behind the loop is what was before it.
            frame.env = start
            return
        after = ends[0]
        for other in ends[1:]:
            after = merge(after, other)
        frame.env = _later_run(start, after)
        if all(frame.env.get(name) == value for name, value in start.items()):
            return


def _later_run(start: Environment, after: Environment) -> Environment:
    result = dict(after)
    for name, value in start.items():
        now = after.get(name)
        if now is None or now is value:
            continue
        # `total = 0; for ...: total = total + x.sum()`: behind the loop a tensor, since loops over layers do run.
        ran = isinstance(now, Tensor) and isinstance(value, Static)
        result[name] = now if ran else join(value, now)
    return result


def _for(frame: Frame, node: ast.For) -> None:
    source = expressions.evaluate(frame, node.iter)
    if frame.emitting:
        frame.tell(Iterate(node.iter, source, "for"))
    element = iteration.element(frame, source)

    def body() -> bool:
        targets.bind(frame, node.target, element, node.iter)
        return block(frame, node.body)

    _loop(frame, body)
    block(frame, node.orelse)


def _while(frame: Frame, node: ast.While) -> None:
    def body() -> bool:
        if truth.truth(frame, node.test, "while") is False:
            return True
        narrow(frame, node.test, True)
        return block(frame, node.body)

    _loop(frame, body)
    block(frame, node.orelse)


def _leave_loop(frame: Frame, node: ast.Break | ast.Continue) -> bool:
    if frame.exits:
        frame.exits[-1].append(dict(frame.env))
    return False


def _try(frame: Frame, node: Any) -> bool:
    start = dict(frame.env)
    goes_on = block(frame, node.body) and block(frame, node.orelse)
    after = frame.env if goes_on else None
    for handler in node.handlers:
        frame.env = merge(start, frame.env) if goes_on else dict(start)
        if handler.name:
            frame.env[handler.name] = UNKNOWN
        if block(frame, handler.body):
            after = frame.env if after is None else merge(after, frame.env)
    frame.env = after if after is not None else start
    return block(frame, node.finalbody) and after is not None


def _with(frame: Frame, node: ast.With | ast.AsyncWith) -> bool:
    for item in node.items:
        value = expressions.evaluate(frame, item.context_expr)
        if item.optional_vars is not None:
            targets.bind(frame, item.optional_vars, value, item.context_expr)
    return block(frame, node.body)


def _assert(frame: Frame, node: ast.Assert) -> None:
    truth.truth(frame, node.test, "assert")
    narrow(frame, node.test, True)


def _definition(frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    info = FunctionInfo(node, frame.module, frame.owner, frame.qualname)
    info.__dict__["closure"] = frame
    frame.env[node.name] = Function(info)


def _class(frame: Frame, node: ast.ClassDef) -> None:
    frame.env[node.name] = Class(frame.module.klass(node, frame.qualname))


def _delete(frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            frame.env.pop(target.id, None)


def _import(frame: Frame, node: ast.Import | ast.ImportFrom) -> None:
    project = frame.machine.project
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            value = project.member(frame.module.absolute(node), alias.name, frame.module)
            frame.env[alias.asname or alias.name] = frame.machine.settled(value)
        else:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            frame.env[alias.asname or name] = project.imported(name, frame.module)


def _match(frame: Frame, node: ast.Match) -> bool:
    subject = expressions.evaluate(frame, node.subject)
    start, after = dict(frame.env), None
    for case in node.cases:
        frame.env = dict(start)
        for part in ast.walk(case.pattern):
            for name in (getattr(part, "name", None), getattr(part, "rest", None)):
                if name:
                    frame.env[name] = subject if part is case.pattern else UNKNOWN
        if case.guard is not None:
            truth.truth(frame, case.guard, "if")
        if block(frame, case.body):
            after = frame.env if after is None else merge(after, frame.env)
    frame.env = merge(start, after) if after is not None else start
    return True


_HANDLERS: Final[dict[type, Callable[[Frame, Any], bool | None]]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.Break: _leave_loop,
    ast.Continue: _leave_loop,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Assert: _assert,
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.ClassDef: _class,
    ast.Delete: _delete,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Match: _match,
}


def yielded(frame: Frame) -> Value:
    """What a generator function gives to its caller."""
    return Sequence("iterator", None, frame.yielded if frame.yielded is not None else UNKNOWN)
