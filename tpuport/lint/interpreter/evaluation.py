"""What expressions may be: names, attributes, displays, operators."""

import ast
import functools
import re
from collections.abc import Callable
from typing import Any, Final

from tpuport.lint.abstract_values import (
    BOOL,
    DTYPE,
    FALSE,
    NONE,
    NOT_CONSTANT,
    STATIC,
    STR,
    TRUE,
    UNKNOWN,
    External,
    Function,
    Interpreted,
    KeyValueCache,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    is_tensor,
    tensor,
)
from tpuport.lint.events import Arithmetic, Comparison, Membership, Truth
from tpuport.lint.interpreter import derived_values, overloading
from tpuport.lint.interpreter.arithmetic_values import arithmetic, broadcast_ndim
from tpuport.lint.interpreter.callables import evaluate_call, evaluate_starred
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.masked_reads import operator_name
from tpuport.lint.interpreter.members import attribute
from tpuport.lint.interpreter.subscripts import evaluate_subscript
from tpuport.lint.interpreter.tensor_functions import like
from tpuport.lint.interpreter.truth import (
    as_value,
    boolean_operation,
    conditional_expression,
    decide,
)
from tpuport.lint.interpreter.value_methods import report_formatting
from tpuport.lint.joins import join_all

# --- constants, names, attributes ---


def _constant(frame: Frame, node: ast.Constant) -> Value:
    return constant_value(node.value)


# Typed, since 1, 1.0 and True are equal.
@functools.lru_cache(maxsize=10_000, typed=True)
def constant_value(constant: Any) -> Value:
    """The value of a constant in the text."""
    match constant:
        case None:
            return NONE
        case bool(answer):
            return as_value(answer)
        case int() | str():
            return Static(type(constant).__name__, constant)
        # Other constants decide no branch, and telling them apart would only interpret
        # functions more often.
        case float() | complex() | bytes():
            return Static(type(constant).__name__)
        case _:
            return STATIC


def _name(frame: Frame, node: ast.Name) -> Value:
    return frame.lookup(node.id)


def _attribute(frame: Frame, node: ast.Attribute) -> Value:
    base = frame.evaluate(node.value)
    # What the frame knows of `self.x` or `self.x.y` is better than what the object's
    # class does.
    match node.value:
        case ast.Name(id=name):
            known = frame.env.get(f"{name}.{node.attr}")
        case ast.Attribute(value=ast.Name(id=name), attr=middle):
            known = frame.env.get(f"{name}.{middle}.{node.attr}")
        case _:
            known = None
    if known is None:
        return attribute(frame, base, node.attr)
    return known


# --- displays, strings, functions ---


_DISPLAY_KINDS: Final = {ast.Tuple: "tuple", ast.List: "list", ast.Set: "set"}


def _display(frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
    kind = _DISPLAY_KINDS[type(node)]
    elements, is_certain = evaluate_starred(frame, node.elts)
    if is_certain:
        return Sequence(kind, tuple(elements), join_all(elements))
    return Sequence(kind, None, join_all(elements), any(map(is_tensor, elements)))


def _dict(frame: Frame, node: ast.Dict) -> Value:
    entries: dict[Any, Value] = {}
    # Values whose keys the source text does not tell.
    others: list[Value] = []
    for key, value_node in zip(node.keys, node.values, strict=True):
        value = frame.evaluate(value_node)
        match key, value:
            case ast.Constant(value=constant), _:
                entries[constant] = value
            # `**mapping`, which may have further entries.
            case None, Mapping():
                entries.update(value.entries)
                others.append(UNKNOWN)
            case None, _:
                others.append(UNKNOWN)
            case expression, _:
                frame.evaluate(expression)
                others.append(value)
    return Mapping(tuple(entries.items()), join_all(others))


def _joined_string(frame: Frame, node: ast.JoinedStr) -> Value:
    texts: list[Any] = []
    for part in node.values:
        match part:
            case ast.FormattedValue(value=operand, conversion=conversion):
                value = frame.evaluate(operand)
                has_spec = part.format_spec is not None
                _report_formatted(frame, operand, value, has_spec)
                is_plain = conversion == -1 and not has_spec
                texts.append(value.constant if is_plain else NOT_CONSTANT)
            case ast.Constant(value=text):
                texts.append(text)
    # `f"{package}.{name}_backend"` names a module, `f"step_{mode}"` a method.
    if all(isinstance(text, str) for text in texts):
        return Static("str", "".join(texts))
    return STR


def _report_formatted(
    frame: Frame, node: ast.expr, value: Value, has_spec: bool
) -> None:
    """Let the rules hear of each tensor in an operand of `%` or in an f-string."""
    match node, value:
        case ast.Tuple(), Sequence(items=tuple(items)):
            for part, part_value in zip(node.elts, items, strict=False):
                _report_formatted(frame, part, part_value, has_spec)
        case _:
            report_formatting(frame, node, value, has_spec)


def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    return frame.define_function(node)


def _yield(frame: Frame, node: ast.Yield) -> Value:
    frame.add_yielded(frame.evaluate_optional(node.value))
    return UNKNOWN


def _yield_from(frame: Frame, node: ast.YieldFrom) -> Value:
    frame.add_yielded(frame.element_of(frame.evaluate(node.value)))
    return UNKNOWN


def _await(frame: Frame, node: ast.Await) -> Value:
    return frame.evaluate(node.value)


def _starred(frame: Frame, node: ast.Starred) -> Value:
    return frame.element_of(frame.evaluate(node.value))


def _slice(frame: Frame, node: ast.Slice) -> Value:
    return STATIC


# --- operators ---

# Formats of `%` that take a number.
_NUMBER_FORMAT: Final = re.compile("%[di.fgx]")


def _binary_operation(frame: Frame, node: ast.BinOp) -> Value:
    left = frame.evaluate(node.left)
    right = frame.evaluate(node.right)
    match node.op, left:
        case ast.Mod(), Static(kind="str"):
            # A text that is not known becomes "Ellipsis", in which there is no format.
            has_spec = _NUMBER_FORMAT.search(str(left.constant)) is not None
            _report_formatted(frame, node.right, right, has_spec)
            return STR
    overloaded = overloading.binary_operation(frame, left, node.op, right)
    if overloaded is not None:
        return overloaded
    result = arithmetic(left, node.op, right)
    frame.report(Arithmetic(node, left, node.op, right, result))
    return result


def _unary_operation(frame: Frame, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        return as_value(decide(frame, node, "not"))
    value = frame.evaluate(node.operand)
    match node.op, value:
        case _, Tensor():
            result = derived_values.of_operator(
                operator_name(node.op), like(value), value
            )
            frame.report(Arithmetic(node, value, node.op, None, result))
            return result
        # -1 is written for "the last", "all" and "not given", which rules ask for.
        case ast.USub(), Static(constant=int(number)):
            return Static("int", -number)
        case _, Static(kind=kind):
            return Static(kind)
        case _:
            return overloading.unary_operation(frame, node.op, value) or UNKNOWN


# --- comparisons ---

# No tensor equals one of these, so the comparison is Python's.
_NEVER_TENSORS: Final = frozenset({"str", "none", "shape", "dtype", "device"})
_PYTHON_KINDS: Final = _NEVER_TENSORS | {"bool"}
_HALF_PRECISION: Final = frozenset({"torch.float16", "torch.half"})


def _comparison(frame: Frame, node: ast.Compare) -> Value:
    """`a < b < c`, `a in b`, `a is b`."""
    left = frame.evaluate(node.left)
    result: Value | None = None
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        right = frame.evaluate(right_node)
        comparison = _compare(frame, node, left, operator, right)
        # `a < b < c` asks every comparison but the last for its truth.
        if isinstance(result, Tensor):
            frame.report(Truth(node, result, "and"))
        result = comparison
        left = right
    return result or UNKNOWN


def _compare(
    frame: Frame, node: ast.Compare, left: Value, operator: ast.cmpop, right: Value
) -> Value:
    overloaded = overloading.comparison(frame, left, operator, right)
    if overloaded is not None:
        return overloaded
    match operator:
        case ast.Is():
            return as_value(_is_identical(left, right))
        case ast.IsNot():
            return _negated(as_value(_is_identical(left, right)))
        case ast.In() | ast.NotIn():
            frame.report(Membership(node, left, right))
            return BOOL
    match left, right:
        case (Tensor(), Static(kind=kind)) | (Static(kind=kind), Tensor()) if (
            kind in _NEVER_TENSORS
        ):
            return BOOL
        case (Tensor(), _) | (_, Tensor()):
            frame.report(Comparison(node, left, right))
            result = tensor("bool", ndim=broadcast_ndim(left, right))
            return derived_values.of_operator("eq", result, left, right)
    match operator:
        case ast.Eq():
            return _equality(left, right)
        case ast.NotEq():
            return _negated(_equality(left, right))
        case _:
            return _known_to_be_bool(left, right)


_NEGATIONS: Final[dict[Value, Value]] = {TRUE: FALSE, FALSE: TRUE}


def _negated(value: Value) -> Value:
    return _NEGATIONS.get(value, value)


def _known_to_be_bool(left: Value, right: Value) -> Value:
    """A comparison of Python objects; `UNKNOWN` if one may be a tensor."""
    are_known = UNKNOWN not in (left, right)
    if are_known or not _PYTHON_KINDS.isdisjoint((left.kind, right.kind)):
        return BOOL
    return UNKNOWN


def _equality(left: Value, right: Value) -> Value:
    """`left == right` without tensors, as far as the source text tells the answer."""
    if DTYPE in (left, right) and not _HALF_PRECISION.isdisjoint(
        (left.constant, right.constant)
    ):
        # Ported models run in bfloat16 or float32, so `x.dtype == torch.float16` is
        # false.
        return FALSE
    match left, right:
        case Static(constant=str() | int()), Static(constant=str() | int()):
            return as_value(left.constant == right.constant)
        case _:
            return _known_to_be_bool(left, right)


def _is_identical(left: Value, right: Value) -> bool | None:
    """`left is right`, as far as it is known: only for None."""
    match left, right:
        case (
            (Static(constant=None) | External(missing=True)),
            (Static(constant=None) | External(missing=True)),
        ):
            return True
        case (Static(constant=None), other) | (other, Static(constant=None)) if (
            _is_never_none(other)
        ):
            return False
        case _:
            return None


def _is_never_none(value: Value) -> bool:
    match value:
        case (
            Tensor(optional=False)
            | KeyValueCache(present=True)
            | Static(kind="bool" | "int" | "float" | "str")
            | Function()
            | Interpreted()
        ):
            return True
        case _:
            # Instances and containers do not record whether they may be None.
            return False


HANDLERS: Final[dict[type[ast.AST], Callable[[Frame, Any], Value]]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: evaluate_call,
    ast.Subscript: evaluate_subscript,
    ast.BinOp: _binary_operation,
    ast.UnaryOp: _unary_operation,
    ast.BoolOp: boolean_operation,
    ast.Compare: _comparison,
    ast.IfExp: conditional_expression,
    **dict.fromkeys(_DISPLAY_KINDS, _display),
    ast.Dict: _dict,
    ast.JoinedStr: _joined_string,
    ast.Lambda: _lambda,
    ast.Yield: _yield,
    ast.YieldFrom: _yield_from,
    ast.Await: _await,
    ast.Starred: _starred,
    ast.Slice: _slice,
}
