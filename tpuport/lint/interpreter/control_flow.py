"""Branches, loops, handlers of exceptions and matches: which of their statements run,
and what is known after them.
"""

import ast
import functools
from collections.abc import Callable
from typing import Any, Final

from tpuport.lint.abstract_values import (
    NONE,
    UNKNOWN,
    Static,
    Value,
    is_traced,
)
from tpuport.lint.events import Iteration
from tpuport.lint.interpreter.containers import told_apart
from tpuport.lint.interpreter.execution import bind, refusal_of
from tpuport.lint.interpreter.frame import (
    Environment,
    Frame,
    copy_environment,
    merge,
    merge_optional,
    path_of,
)
from tpuport.lint.interpreter.object_state import store
from tpuport.lint.interpreter.truth import (
    decide,
    narrow,
    possible_branches,
)
from tpuport.lint.joins import (
    carried,
    join,
    join_all,
    losses,
)

_NUMBERS: Final = frozenset({"int", "float", "bool"})
# A loop's environment settles after a few runs: a name changes from Python object to
# tensor, or to unknown.
_LOOP_RUNS: Final = 3


def _if(frame: Frame, node: ast.If) -> bool:
    before = frame.env
    match node.body:
        case [ast.Raise() as refusal] if frame.hears_of_packages and _holds(
            frame, node.test
        ):
            frame.report_package(refusal_of(frame, refusal, node.test))
    branches = possible_branches(frame, node.test, "if", node.body, node.orelse)
    ends = [frame.env for body in branches if frame.execute(body)]
    # No branch that can run reaches its end.
    if not ends:
        return False
    losses_before = losses.count
    after = functools.reduce(merge, ends)
    if losses.count > losses_before:
        frame.env = before
        if is_traced(frame.evaluate_silently(node.test)):
            after |= _tensors_of_any(ends)
    frame.env = after
    _keep_first_value(frame, node.test, ends)
    return True


def _keep_first_value(frame: Frame, test: ast.expr, ends: list[Environment]) -> None:
    """After `if not hasattr(self, "x"): self.x = ...` the attribute has the value of
    the branch that sets it: in the other one it is there, since an earlier call set it.
    """
    attribute = _attribute_asked_for(test)
    path = path_of(attribute) if attribute else None
    if attribute is None or path is None:
        return
    values = [env[path] for env in ends if env.get(path, NONE) != NONE]
    if len(values) == 1 < len(ends):
        store(frame, attribute, join(values[0], NONE))


def _attribute_asked_for(test: ast.expr) -> ast.Attribute | None:
    """The attribute that a condition asks for, whether an object has it: `hasattr(self,
    "x")`, `self.x is None`, `not self.x`.
    """
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _attribute_asked_for(operand)
        case ast.Compare(
            left=subject,
            ops=[ast.Is() | ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            return _attribute_asked_for(subject)
        case ast.Call(
            func=ast.Name(id="hasattr" | "getattr"),
            args=[holder, ast.Constant(value=str(name)), *_],
        ):
            return ast.Attribute(holder, name, ast.Load())
        case ast.Attribute():
            return test
        case _:
            return None


def _tensors_of_any(ends: list[Environment]) -> Environment:
    """Names that are a tensor after one branch, and a number after another, of a
    condition on a tensor.

    A program that computes both and chooses has a tensor. Of a condition on a setting
    it may have the number alone.
    """
    tensors: Environment = {}
    for name in set.intersection(*map(set, ends)):
        values = [env[name] for env in ends]
        traced = [value for value in values if is_traced(value)]
        others = [value for value in values if not is_traced(value)]
        if traced and all(
            isinstance(value, Static) and value.kind in _NUMBERS for value in others
        ):
            tensors[name] = join_all(traced)
    return tensors


def _holds(frame: Frame, test: ast.expr) -> bool:
    """Whether a condition certainly holds. Rules hear nothing."""
    emitting, frame.emitting = frame.emitting, False
    answer = decide(frame, test, "if")
    frame.emitting = emitting
    return answer is True


def _for(frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    source = frame.evaluate(node.iter)
    frame.report(Iteration(node.iter, source))
    element = frame.element_of(source)

    def run(item: Value = element) -> bool:
        bind(frame, node.target, item, node.iter)
        return frame.execute(node.body)

    items = told_apart(source)
    if items is None:
        _loop(frame, run)
    else:
        for item in items:
            if not _run_once(frame, functools.partial(run, item)):
                break
    frame.execute(node.orelse)


def _run_once(frame: Frame, run: Callable[[], bool]) -> bool:
    """Interpret one run of a loop; False if every way through its body leaves the
    function.
    """
    start = copy_environment(frame.env)
    exits = _exits(frame, run)
    frame.env = functools.reduce(merge, exits) if exits else start
    return bool(exits)


def _exits(frame: Frame, run: Callable[[], bool]) -> list[Environment]:
    """Interpret one run of a loop, and return the environments in which it ends within
    the function.
    """
    frame.exits.append([])
    goes_on = run()
    exits = frame.exits.pop()
    if goes_on:
        exits.append(frame.env)
    return exits


def _while(frame: Frame, node: ast.While) -> None:
    def run() -> bool:
        # A condition that fails at once leaves the loop as it is entered.
        if decide(frame, node.test, "while") is False:
            return True
        narrow(frame, node.test, True)
        return frame.execute(node.body)

    _loop(frame, run)
    frame.execute(node.orelse)


def _loop(frame: Frame, run: Callable[[], bool]) -> None:
    """Interpret a loop's first run, and later ones until they change nothing."""
    for _ in range(_LOOP_RUNS):
        start = copy_environment(frame.env)
        exits = _exits(frame, run)
        if not exits:
            # Every way through the body leaves the function: code after the loop runs
            # only if the loop does not.
            frame.env = start
            return
        after = functools.reduce(merge, exits)
        # `continue` and `break` may leave a number that other ways through the body
        # make a tensor of.
        tensors = _tensors_of_any(exits)
        after |= {
            name: value
            for name, value in tensors.items()
            if isinstance(start.get(name), Static)
        }
        frame.env = _before_next_run(start, after)
        if all(frame.env.get(name) == value for name, value in start.items()):
            return


def _before_next_run(start: Environment, after: Environment) -> Environment:
    """The environment of a later run, by the one before the last run and the one after
    it.
    """
    result = copy_environment(after)
    # Names that the run binds for the first time stay as the run leaves them.
    for name in start.keys() & after.keys():
        result[name] = carried(start[name], after[name])
    return result


def _leave_loop(frame: Frame, node: ast.Break | ast.Continue) -> bool:
    # Python's parser accepts `break` outside loops.
    if frame.exits:
        frame.exits[-1].append(copy_environment(frame.env))
    return False


def _try(frame: Frame, node: Any) -> bool:
    start = copy_environment(frame.env)
    before_handlers = start
    after: Environment | None = None
    frame.doubts += 1
    frame.handled += bool(node.handlers)
    reaches_end = frame.execute(node.body)
    frame.handled -= bool(node.handlers)
    reaches_end = reaches_end and frame.execute(node.orelse)
    frame.doubts -= 1
    if reaches_end:
        after = frame.env
        # Any statement of the body may have been the last.
        before_handlers = merge(start, after)
    for handler in node.handlers:
        frame.env = copy_environment(before_handlers)
        if handler.name:
            frame.env[handler.name] = UNKNOWN
        if frame.execute(handler.body):
            after = merge_optional(after, frame.env)
    frame.env = start if after is None else after
    return frame.execute(node.finalbody) and after is not None


def _with(frame: Frame, node: ast.With | ast.AsyncWith) -> bool:
    for item in node.items:
        value = frame.entered(frame.evaluate(item.context_expr))
        if item.optional_vars is not None:
            bind(frame, item.optional_vars, value, item.context_expr)
    return frame.execute(node.body)


def _match(frame: Frame, node: ast.Match) -> None:
    subject = frame.evaluate(node.subject)
    start = copy_environment(frame.env)
    # No case need match.
    after = start
    for case in node.cases:
        frame.env = copy_environment(start)
        _bind_pattern(frame, case.pattern, subject)
        if case.guard is not None:
            decide(frame, case.guard, "if")
        if frame.execute(case.body):
            after = merge(after, frame.env)
    frame.env = after


def _bind_pattern(frame: Frame, pattern: ast.pattern, subject: Value) -> None:
    for part in ast.walk(pattern):
        match part:
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                frame.env[name] = UNKNOWN
    # `case x:` and `case ... as x:` bind the whole subject.
    match pattern:
        case ast.MatchAs(name=str(name)):
            frame.env[name] = subject


HANDLERS: Final[dict[type[ast.AST], Callable[[Frame, Any], bool | None]]] = {
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
    ast.Match: _match,
}
