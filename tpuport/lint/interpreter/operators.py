"""Operators and comparisons: what they give, and what they ask of tensors."""

import ast
from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    DTYPE,
    FALSE,
    NONE,
    STR,
    TRUE,
    UNKNOWN,
    Function,
    Sequence,
    Static,
    Tensor,
    Value,
    join_all,
    joint_element,
    tensor,
)
from tpuport.lint.events import Arithmetic, Compare, Formatted, Membership, Truth
from tpuport.lint.interpreter import dtypes, expressions, truth
from tpuport.lint.interpreter.frame import Frame


def binary(frame: Frame, node: ast.BinOp) -> Value:
    """`a + b`, or a text with `%`."""
    left = expressions.evaluate(frame, node.left)
    right = expressions.evaluate(frame, node.right)
    if isinstance(node.op, ast.Mod) and isinstance(left, Static) and left.kind == "str":
        text = left.constant if isinstance(left.constant, str) else ""
        formatted(
            frame, node.right, right, any(letter in text for letter in ("%d", "%i", "%.", "%f", "%g", "%x"))
        )
        return STR
    result = arithmetic(left, node.op, right)
    if frame.emitting and (isinstance(left, Tensor) or isinstance(right, Tensor)):
        frame.tell(Arithmetic(node, left, node.op, right, result))
    return result


def arithmetic(left: Value, operator: ast.operator, right: Value) -> Value:
    """What `left operator right` is."""
    if isinstance(operator, ast.Mult) and isinstance(left, Sequence) and isinstance(right, Tensor):
        return Sequence(left.kind, None, left.element, left.tensors)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        mask = (
            _mask_of(left)
            and _mask_of(right)
            and isinstance(operator, ast.BitAnd | ast.BitOr | ast.BitXor | ast.Mult)
        )
        family = "float" if isinstance(operator, ast.Div) else dtypes.promote(left, right)
        return tensor(family, ndim=_ndim(left, right), origin="mask" if mask else "")
    if isinstance(left, Static) and isinstance(right, Static):
        if isinstance(operator, ast.Div):
            return Static("float")
        kinds = {left.kind, right.kind}
        return Static(left.kind if len(kinds) == 1 else "float" if kinds == {"int", "float"} else "")
    if isinstance(left, Sequence) and isinstance(operator, ast.Add) and isinstance(right, Sequence):
        if left.items is not None and right.items is not None:
            items = (*left.items, *right.items)
            return Sequence(left.kind, items, join_all(items))
        return Sequence(left.kind, None, joint_element(left, right), left.tensors or right.tensors)
    if isinstance(operator, ast.Mult):
        for one in (left, right):
            if isinstance(one, Sequence):
                return Sequence(one.kind, None, one.element, one.tensors)
    return UNKNOWN


def _mask_of(value: Value) -> bool:
    return isinstance(value, Tensor) and (value.origin == "mask" or value.dtype == "bool")


def _ndim(left: Value, right: Value) -> int:
    one = left.ndim if isinstance(left, Tensor) else 0 if isinstance(left, Static) else -1
    other = right.ndim if isinstance(right, Tensor) else 0 if isinstance(right, Static) else -1
    return -1 if -1 in (one, other) else max(one, other)


def unary(frame: Frame, node: ast.UnaryOp) -> Value:
    """`-a`, `~a`, `not a`."""
    if isinstance(node.op, ast.Not):
        answer = truth.truth(frame, node.operand, "not")
        return truth.answered(answer)
    value = expressions.evaluate(frame, node.operand)
    if isinstance(value, Tensor):
        result = tensor(
            value.dtype, value.exact, value.ndim, origin=value.origin if value.origin == "mask" else ""
        )
        if frame.emitting:
            frame.tell(Arithmetic(node, value, node.op, None, result))
        return result
    if isinstance(value, Static):
        if isinstance(node.op, ast.USub) and isinstance(value.constant, int):
            return Static("int", -value.constant)
        return Static(value.kind)
    return UNKNOWN


_IDENTITY: Final = (ast.Is, ast.IsNot)


def compare(frame: Frame, node: ast.Compare) -> Value:
    """`a < b < c`, `a in b`, `a is b`."""
    left = expressions.evaluate(frame, node.left)
    result: Value | None = None
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        right = expressions.evaluate(frame, right_node)
        one = _compare_one(frame, node, left, operator, right)
        # `a < b < c` asks each part but the last for its truth.
        if result is not None and isinstance(result, Tensor) and frame.emitting:
            frame.tell(Truth(node, result, "and"))
        result = one
        left = right
    return UNKNOWN if result is None else result


def _compare_one(frame: Frame, node: ast.Compare, left: Value, operator: ast.cmpop, right: Value) -> Value:
    if isinstance(operator, _IDENTITY):
        return _identity(left, right, isinstance(operator, ast.Is))
    if isinstance(operator, ast.In | ast.NotIn):
        if frame.emitting:
            frame.tell(Membership(node, left, right))
        return BOOL
    if frame.emitting:
        frame.tell(Compare(node, left, operator, right))
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        other = right if isinstance(left, Tensor) else left
        if isinstance(other, Static) and other.kind in {"str", "none", "shape", "dtype", "device"}:
            return BOOL
        return tensor("bool", ndim=_ndim(left, right))
    return _of_python(left, operator, right)


def _of_python(left: Value, operator: ast.cmpop, right: Value) -> Value:
    """A comparison without tensors, as far as the text says how it ends."""
    equality = isinstance(operator, ast.Eq | ast.NotEq)
    if equality and _half(left) != _half(right) and {left, right} & {DTYPE}:
        # Ported models run in bfloat16 or float32: `x.dtype == torch.float16` is false.
        return FALSE if isinstance(operator, ast.Eq) else TRUE
    if left is UNKNOWN or right is UNKNOWN:
        return BOOL if _python(left) or _python(right) else UNKNOWN
    if equality and _said(left) and _said(right):
        same = left.constant == right.constant  # pyright: ignore[reportAttributeAccessIssue]
        return TRUE if same == isinstance(operator, ast.Eq) else FALSE
    return BOOL


def _said(value: Value) -> bool:
    return isinstance(value, Static) and isinstance(value.constant, str | int)


def _half(value: Value) -> bool:
    return isinstance(value, Static) and value.constant in {"torch.float16", "torch.half"}


def _python(value: Value) -> bool:
    return isinstance(value, Static) and value.kind in {"str", "none", "dtype", "device", "shape", "bool"}


def _identity(left: Value, right: Value, wanted: bool) -> Value:
    for one, other in ((left, right), (right, left)):
        if one == NONE:
            if other == NONE:
                return TRUE if wanted else FALSE
            sure = (isinstance(other, Tensor) and not other.optional) or (
                isinstance(other, Static) and other.kind in {"bool", "int", "float", "str"}
            )
            # Of instances and containers it is not kept whether they may be None.
            if sure or isinstance(other, Function):
                return FALSE if wanted else TRUE
    return BOOL


def formatted(frame: Frame, node: ast.expr, value: Value, spec: bool) -> None:
    """Tell the rules of tensors that are made text; `spec`: by a format that asks for their numbers."""
    if not frame.emitting or frame.raising:
        return
    if isinstance(value, Sequence) and isinstance(node, ast.Tuple) and value.items is not None:
        for part, one in zip(node.elts, value.items, strict=False):
            formatted(frame, part, one, spec)
    elif isinstance(value, Tensor):
        frame.tell(Formatted(node, value, spec))
