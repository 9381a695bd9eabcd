"""Truth: questions to values, and the expressions that ask them (`and`, `or`, `not`, `a if b else c`)."""

import ast

from tpuport.lint.abstract_values import (
    BOOL,
    FALSE,
    NONE,
    TRUE,
    UNKNOWN,
    Function,
    Static,
    Tensor,
    Value,
    join,
    join_all,
)
from tpuport.lint.events import Truth
from tpuport.lint.interpreter import expressions
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.narrowing import narrow


def truth(frame: Frame, node: ast.expr, where: str) -> bool | None:
    """Ask an expression for its truth: tells the rules of tensors in it, gives the answer where it is known."""
    if isinstance(node, ast.BoolOp):
        return _boolean_truth(frame, node, where)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(frame, node.operand, "not" if where not in {"assert"} else where)
        return None if inner is None else not inner
    value = expressions.evaluate(frame, node)
    if frame.emitting and isinstance(value, Tensor):
        frame.tell(Truth(node, value, where, frame.statement))
    return constant_truth(value)


def constant_truth(value: Value) -> bool | None:
    """Whether a value is surely true or surely false."""
    if isinstance(value, Static):
        if value.constant is None:
            return False
        if isinstance(value.constant, bool):
            return value.constant
    if isinstance(value, Function):
        return True
    return None


def _boolean_truth(frame: Frame, node: ast.BoolOp, where: str) -> bool | None:
    deciding = isinstance(node.op, ast.Or)
    before = frame.env
    frame.env = dict(before)
    unsure = False
    answer: bool | None = not deciding
    for part in node.values:
        constant = truth(frame, part, where)
        if constant is deciding:
            # Behind a surely deciding part nothing is evaluated; before it, an unsure one may have decided the same.
            answer = deciding
            unsure = False
            break
        unsure = unsure or constant is None
        if not narrow(frame, part, not deciding):
            answer = deciding if constant is None else answer
            break
    frame.env = before
    return None if unsure else answer


def bool_op(frame: Frame, node: ast.BoolOp) -> Value:
    """`a and b` as a value: what the last part is, where the earlier ones only guard it."""
    deciding = isinstance(node.op, ast.Or)
    word = "or" if deciding else "and"
    before = frame.env
    frame.env = dict(before)
    result: Value | None = None
    for position, part in enumerate(node.values):
        value = expressions.evaluate(frame, part)
        last = position == len(node.values) - 1
        constant = constant_truth(value)
        if not last and frame.emitting and isinstance(value, Tensor):
            frame.tell(Truth(part, value, word))
        if constant is deciding:
            result = value if result is None else _guarded(result, value)
            break
        if last or constant is None:
            result = value if result is None else _guarded(result, value)
        if not last and not narrow(frame, part, not deciding):
            break
    frame.env = before
    return UNKNOWN if result is None else result


def _guarded(guard: Value, value: Value) -> Value:
    if isinstance(value, Tensor) and isinstance(guard, Static) and guard.kind in {"bool", "none"}:
        return value
    if isinstance(guard, Tensor) and value == NONE:
        return guard
    return join(guard, value)


def if_exp(frame: Frame, node: ast.IfExp) -> Value:
    """`a if b else c`."""
    constant = truth(frame, node.test, "conditional expression")
    before = frame.env
    results: list[Value] = []
    for held, branch in ((True, node.body), (False, node.orelse)):
        if constant is (not held):
            continue
        frame.env = dict(before)
        if narrow(frame, node.test, held):
            results.append(expressions.evaluate(frame, branch))
    frame.env = before
    return join_all(results)


def answered(answer: bool | None) -> Value:
    """`not x` as a value, by the answer of `truth`."""
    return BOOL if answer is None else FALSE if answer else TRUE
