"""What Python's arithmetic gives for tensors, numbers and lists."""

import ast

from tpuport.lint.abstract_values import (
    FLOAT,
    STATIC,
    UNKNOWN,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    tensor,
)
from tpuport.lint.dtype_families import promote
from tpuport.lint.interpreter import derived_values
from tpuport.lint.interpreter.masked_reads import operator_name
from tpuport.lint.joins import join_all, joint_element


def arithmetic(left: Value, operator: ast.operator, right: Value) -> Value:
    """What `left operator right` is."""
    is_repetition = isinstance(operator, ast.Mult)
    match left, right:
        # `[x] * n` with a tensor `n`: Python asks the tensor for an integer.
        case Sequence(), Tensor() if is_repetition:
            return left.of_any_length()
        case (Tensor(), _) | (_, Tensor()):
            return derived_values.of_operator(
                operator_name(operator),
                _tensor_arithmetic(left, operator, right),
                left,
                right,
            )
        case Static(), Static():
            return _static_arithmetic(left, operator, right)
        case Mapping(), Mapping() if isinstance(operator, ast.BitOr):
            entries = dict(left.entries) | dict(right.entries)
            return Mapping(tuple(entries.items()), left.element)
        case Sequence(), Sequence() if isinstance(operator, ast.Add):
            return _concatenated(left, right)
        case (Sequence() as sequence, _) | (_, Sequence() as sequence) if is_repetition:
            return sequence.of_any_length()
    return UNKNOWN


def _concatenated(left: Sequence, right: Sequence) -> Value:
    match left.items, right.items:
        case tuple(left_items), tuple(right_items):
            items = (*left_items, *right_items)
            return Sequence(left.kind, items, join_all(items))
        case _:
            return Sequence(
                left.kind,
                None,
                joint_element(left, right),
                left.tensors or right.tensors,
            )


def _tensor_arithmetic(left: Value, operator: ast.operator, right: Value) -> Value:
    family = promote(left, right)
    ndim = broadcast_ndim(left, right)
    match operator, left, right:
        # `/` divides integers as floats.
        case ast.Div(), _, _:
            return tensor("float", ndim=ndim)
        case (
            ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.Mult(),
            Tensor(origin="mask") | Tensor(dtype="bool"),
            Tensor(origin="mask") | Tensor(dtype="bool"),
        ):
            return tensor(family, ndim=ndim, origin="mask")
        case _:
            return tensor(family, ndim=ndim)


def broadcast_ndim(left: Value, right: Value) -> int:
    """The number of dimensions of an elementwise result, -1 if it is not known."""
    ndims = (_ndim(left), _ndim(right))
    return -1 if -1 in ndims else max(ndims)


def _ndim(value: Value) -> int:
    # Numbers broadcast as scalars.
    return 0 if isinstance(value, Static) else value.ndim


def _static_arithmetic(left: Static, operator: ast.operator, right: Static) -> Value:
    match operator, left.kind, right.kind:
        case (ast.Div(), _, _) | (_, "int", "float") | (_, "float", "int"):
            return FLOAT
        case _, kind, other_kind if kind == other_kind:
            return Static(kind)
        case _:
            return STATIC
