"""What rules make of code of model libraries, which tpuport trusts while it traces.

There, checks of values hold: an `assert`, and an `if` with nothing but a `raise`. What
follows from weights has values. A copy to the host stays on the device. All other code
may be changed, and so is refused. In a model that is derived from a library's, all code
is trusted.

`tpuport.compilation.decisions.host_inputs.libraries_trusted` says so of compiled code.
"""

import ast
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from tpuport.lint.abstract_values import Value
from tpuport.lint.events import Call, Event, Subscript, Truth
from tpuport.lint.interpreter.derived_values import with_values
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.masked_reads import keeps_rows
from tpuport.lint.rules.rule import Answer, Context, Rule

# Rules about values that Python asks for, and of these those about what is not
# answered: arrays of NumPy and texts.
_OF_VALUES: Final = ("TPU1", "TPU2", "TPU312")
_NOT_ANSWERED: Final = frozenset({"TPU203", "TPU211"})


def answer_in_trusted_code(
    rule: Rule, event: Event, context: Context, frame: Frame
) -> Answer:
    """What a rule answers to an event of trusted code, where it says yes elsewhere.

    Args:
        rule: the rule.
        event: the event.
        context: of the event.
        frame: in which it happens.
    """
    context = dataclasses.replace(context, trusted=True)
    if not rule.id.startswith(_OF_VALUES) or rule.id in _NOT_ANSWERED:
        return rule.check(event, context)
    if _is_part_of_check(event, frame) or (
        isinstance(event, Subscript) and keeps_rows(event)
    ):
        return None
    return rule.check(_with_values(event), context)


def _is_part_of_check(event: Event, frame: Frame) -> bool:
    """Whether it is a question of a check, or takes a number to compare it there."""
    # An error that is handled is another way to branch.
    is_check = not frame.handled
    conditions = list(_conditions_of_check(frame.statement)) if is_check else []
    match event:
        # The assertion is in torch's code.
        case Call(name="torch._assert"):
            return frame.interpreter.trusts_all
        case Truth(node=node) | Call(node=node, name="builtins.bool"):
            return any(node is condition for condition in conditions)
        case Call(node=node, name="item"):
            return any(
                node is operand
                for condition in conditions
                for operand in _operands(condition)
            )
        case _:
            return False


def _conditions_of_check(statement: ast.stmt | None) -> Iterator[ast.expr]:
    """What Python asks for its truth in a statement that raises or does nothing."""
    match statement:
        case ast.Assert(test=test) | ast.If(test=test, body=[ast.Raise()]):
            yield from _conditions(test)


def _conditions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _conditions(operand)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _conditions(value)
        case ast.Compare(ops=[ast.In() | ast.NotIn(), *_]):
            # Asks for each comparison with an element.
            return
        case _:
            yield node


def _operands(condition: ast.expr) -> list[ast.expr]:
    match condition:
        case ast.Compare(left=left, comparators=[right]):
            return [condition, left, right]
        case _:
            return [condition]


def _with_values(event: Event) -> Event:
    """The event with values where something is decided."""
    parts = {
        field.name: _part_with_values(getattr(event, field.name))
        for field in dataclasses.fields(event)
    }
    return dataclasses.replace(event, **parts)


def _part_with_values(part: Any) -> Any:
    match part:
        case Value():
            return with_values(part)
        case list():
            return list(map(_part_with_values, part))
        case dict():
            return {name: _part_with_values(value) for name, value in part.items()}
        case _:
            return part
