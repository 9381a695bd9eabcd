"""Subscripts: indices, slices, and what is taken out."""

import ast
from typing import Any

from tpuport.lint.abstract_values import (
    NONE,
    TENSOR,
    UNKNOWN,
    External,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    join_all,
    tensor,
)
from tpuport.lint.events import SliceBound, Subscript
from tpuport.lint.interpreter import expressions, members
from tpuport.lint.interpreter.frame import Frame


def indices(frame: Frame, node: ast.Subscript, base: Value) -> tuple[list[Value], list[ast.expr]]:
    """Values and syntax of an index's parts; the bounds of slices are told to the rules."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    values: list[Value] = []
    for part in parts:
        if isinstance(part, ast.Slice):
            for bound in (part.lower, part.upper, part.step):
                if bound is not None:
                    value = expressions.evaluate(frame, bound)
                    if frame.emitting and isinstance(value, Tensor):
                        frame.tell(SliceBound(bound, base, value))
            values.append(Static("slice"))
        else:
            values.append(expressions.evaluate(frame, part.value if isinstance(part, ast.Starred) else part))
    return values, list(parts)


def subscript(frame: Frame, node: ast.Subscript) -> Value:
    """`x[...]` as it is read."""
    base = expressions.evaluate(frame, node.value)
    values, nodes = indices(frame, node, base)
    if frame.emitting:
        frame.tell(Subscript(node, base, values, nodes))
    return subscripted(frame, base, values, nodes)


def subscripted(frame: Frame, base: Value, values: list[Value], nodes: list[ast.expr]) -> Value:
    """What `base[values]` is."""
    first = values[0] if values else UNKNOWN
    if isinstance(base, Tensor):
        return _indexed_tensor(base, values, nodes)
    if isinstance(base, Sequence):
        # `x[:, 0]`: annotated as a list or tuple, used as the tensor that it is.
        return _indexed_sequence(base, first, nodes) if len(nodes) == 1 else TENSOR
    if isinstance(base, Mapping):
        key = first.constant if isinstance(first, Static) else ...
        if key is not ...:
            return base.get(key)
        return _any_entry(base)
    if isinstance(base, Static):
        return (
            base
            if base.kind in {"config", "shape"} and isinstance(nodes[0], ast.Slice)
            else Static("int" if base.kind == "shape" else "config" if base.kind == "config" else "")
        )
    if isinstance(base, Instance):
        return members.item(frame, base, first)
    if isinstance(base, External) and base.name.endswith("ACT2FN"):
        return members.ACTIVATION
    return UNKNOWN


def _any_entry(base: Mapping) -> Value:
    """A table of classes or functions indexed by a configuration's word: any of them stands for all."""
    values = [value for _, value in base.entries]
    if values and base.element is UNKNOWN and len({type(value) for value in values}) == 1:
        joint = join_all(values)
        return values[0] if joint is UNKNOWN else joint
    return join_all([*values, base.element]) if values else base.element


def _indexed_sequence(base: Sequence, first: Value, nodes: list[ast.expr]) -> Value:
    if isinstance(nodes[0], ast.Slice):
        return _sliced(base, nodes[0])
    if base.items is not None and isinstance(first, Static) and isinstance(first.constant, int):
        if -len(base.items) <= first.constant < len(base.items):
            return base.items[first.constant]
        return UNKNOWN
    return base.element


def _sliced(base: Sequence, node: ast.Slice) -> Value:
    kind = base.kind if base.kind in {"tuple", "list", "modules", "sequential"} else "list"
    bounds = [None if part is None else _literal(part) for part in (node.lower, node.upper, node.step)]
    if base.items is not None and ... not in bounds:
        items = base.items[slice(*bounds)]
        return Sequence(kind, items, join_all(items))
    return Sequence(kind, None, base.element, base.tensors)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _literal(node.operand)
        return ... if inner is ... else -inner
    return ...


def _indexed_tensor(base: Tensor, values: list[Value], nodes: list[ast.expr]) -> Value:
    advanced = any(isinstance(value, Tensor | Sequence) for value in values)
    ndim = base.ndim
    if ndim >= 0:
        if advanced:
            ndim = -1
        for value, node in zip(values, nodes, strict=True):
            if isinstance(node, ast.Constant) and node.value is ...:
                ndim = -1 if ndim < 0 else ndim
            elif value == NONE:
                ndim += ndim >= 0
            elif isinstance(value, Static) and value.kind == "int":
                ndim -= ndim > 0
    return tensor(
        base.dtype, base.exact, ndim, view=not advanced, origin=base.origin if base.origin == "mask" else ""
    )
