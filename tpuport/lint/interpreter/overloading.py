"""Operators of the linted code's classes: `a + b` is `a.__add__(b)` if the class of `a`
defines that method.
"""

import ast
from typing import Final

from tpuport.lint.abstract_values import Function, Instance, Value
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.passed_arguments import Arguments

_BINARY: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "lshift", ast.RShift: "rshift",
}  # fmt: skip
_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("lt", "gt"), ast.Gt: ("gt", "lt"), ast.LtE: ("le", "ge"), ast.GtE: ("ge", "le"), ast.Eq: ("eq", "eq"),
    ast.NotEq: ("ne", "ne"),
}  # fmt: skip
_UNARY: Final[dict[type[ast.unaryop], str]] = {
    ast.USub: "neg",
    ast.UAdd: "pos",
    ast.Invert: "invert",
}


def binary_operation(
    frame: Frame, left: Value, operator: ast.operator, right: Value
) -> Value | None:
    """What a method for `left operator right` returns; None if neither operand's class
    defines one.
    """
    name = _BINARY[type(operator)]
    return _either(frame, left, f"__{name}__", right, f"__r{name}__")


def augmented_assignment(
    frame: Frame, left: Value, operator: ast.operator, right: Value
) -> Value | None:
    """What a method for `left operator= right` returns; None if neither operand's class
    defines one.
    """
    result = call_method(frame, left, f"__i{_BINARY[type(operator)]}__", right)
    return binary_operation(frame, left, operator, right) if result is None else result


def comparison(
    frame: Frame, left: Value, operator: ast.cmpop, right: Value
) -> Value | None:
    """What a method for a comparison returns; None if neither operand's class defines
    one.
    """
    match operator:
        case ast.In() | ast.NotIn():
            return call_method(frame, right, "__contains__", left)
        case ast.Is() | ast.IsNot():
            return None
    name, reflected = _COMPARISONS[type(operator)]
    return _either(frame, left, f"__{name}__", right, f"__{reflected}__")


def unary_operation(
    frame: Frame, operator: ast.unaryop, operand: Value
) -> Value | None:
    """What a method for `operator operand` returns; None if the operand's class defines
    none.
    """
    return call_method(frame, operand, f"__{_UNARY[type(operator)]}__")


def call_method(
    frame: Frame, receiver: Value, name: str, *arguments: Value
) -> Value | None:
    """What a method of an instance returns; None if its class in the linted code
    defines none of that name.
    """
    # What constructors compute with objects, such as the shapes of a group's
    # representations, says nothing of tensors.
    if not isinstance(receiver, Instance) or not frame.emitting:
        return None
    method = frame.interpreter.classes.method(receiver.info, name)
    if method is None:
        return None
    return frame.interpreter.call_function(
        frame, Function(method, receiver), Arguments([*arguments], {})
    )


def _either(
    frame: Frame, left: Value, name: str, right: Value, reflected: str
) -> Value | None:
    result = call_method(frame, left, name, right)
    return call_method(frame, right, reflected, left) if result is None else result
