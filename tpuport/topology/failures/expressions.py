"""The rule that an expression breaks by what is written there, where the linter cannot tell what the values are."""

import ast
from collections.abc import Iterable
from typing import Final

from tpuport.topology.failures.frames import Frame
from tpuport.topology.failures.linted import tree

# By the last name of what is called.
_CALLS: Final = {
    "item": "TPU201", "tolist": "TPU202", "numpy": "TPU203", "__array__": "TPU203", "asarray": "TPU203",
    "int": "TPU204", "float": "TPU204", "bool": "TPU204", "complex": "TPU204",
    "range": "TPU208", "equal": "TPU210", "allclose": "TPU210", "is_nonzero": "TPU210",
    "print": "TPU211", "format": "TPU211", "max": "TPU212", "min": "TPU212", "any": "TPU212", "all": "TPU212",
    "sorted": "TPU212", "tensor": "TPU213", "as_tensor": "TPU213", "full": "TPU213",
    "nonzero": "TPU102", "argwhere": "TPU102", "where": "TPU102", "masked_select": "TPU103",
    "unique": "TPU104", "unique_consecutive": "TPU104", "repeat_interleave": "TPU105", "bincount": "TPU106",
    "ones": "TPU107", "zeros": "TPU107", "empty": "TPU107", "arange": "TPU107", "view": "TPU107", "reshape": "TPU107",
    "expand": "TPU107", "linspace": "TPU107", "narrow": "TPU107",
    "split": "TPU109", "tensor_split": "TPU109", "one_hot": "TPU110", "pad_sequence": "TPU111",
    "pack_padded_sequence": "TPU111", "nested_tensor": "TPU112", "cpu": "TPU312", "to": "TPU312", "cuda": "TPU301",
}  # fmt: skip
# Only where Python's own is called: a tensor's method of the name is traced.
_BUILTIN: Final = frozenset(
    {"int", "float", "bool", "complex", "range", "max", "min", "any", "all", "sorted", "print"}
)


def rule_of(frame: Frame, *, mask: bool = False) -> str | None:
    """The id of the rule about what stands at a frame's place; None where it is nothing that a rule knows.

    Args:
        frame: where a value was asked for.
        mask: the error was about a boolean mask as an index.
    """
    node, parents = _at(frame)
    while node is not None and not isinstance(
        node, ast.mod | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ):
        parent = parents.get(node)
        found = _of_expression(node, mask=mask) or _of_place(node, parent)
        if found or isinstance(node, ast.stmt):
            return found
        node = parent
    return None


def place_of(frame: Frame) -> ast.AST | None:
    """The smallest expression or statement around a frame's place; None where its file cannot be read."""
    return _at(frame)[0]


def _at(frame: Frame) -> tuple[ast.AST | None, dict[ast.AST, ast.AST]]:
    """(what stands at a frame's place, the parents of every part of its file)."""
    parsed = tree(frame.file)
    if parsed is None or frame.column is None:
        return None, {}
    parents = _parents(parsed)
    place = (frame.line, frame.column), (frame.end_line, frame.end_column or 0)
    return _innermost(parents, *place), parents


def _parents(parsed: ast.Module) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(parsed) for child in ast.iter_child_nodes(node)}


def _innermost(nodes: Iterable[ast.AST], first: tuple[int, int], last: tuple[int, int]) -> ast.AST | None:
    """The smallest expression or statement around a place; of two that are as large, the outer one comes first."""
    around = [
        node
        for node in nodes
        if isinstance(node, ast.expr | ast.stmt) and _start(node) <= first and _end(node) >= last
    ]
    # What starts last, and of that what ends first, is inside of the others.
    return min(around, key=lambda node: (tuple(-one for one in _start(node)), _end(node)), default=None)


def _start(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _of_expression(node: ast.AST, *, mask: bool) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return _CALLS.get(name)
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            if isinstance(value, ast.Name) and value.id == "math":
                return "TPU204"
            return None if name in _BUILTIN else _CALLS.get(name)
        case ast.Subscript(slice=index, ctx=context):
            return _of_index(index, stored=isinstance(context, ast.Store), mask=mask)
        case ast.Compare(ops=[ast.In() | ast.NotIn()]):
            return "TPU209"
        case ast.BoolOp() | ast.IfExp() | ast.UnaryOp(op=ast.Not()):
            return "TPU205"
        case ast.FormattedValue() | ast.JoinedStr():
            return "TPU211"
    return None


def _of_index(index: ast.expr, *, stored: bool, mask: bool) -> str | None:
    if mask:
        return "TPU113" if stored else "TPU101"
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if all(isinstance(part, ast.Constant) for part in parts):
        return None
    return "TPU108" if any(isinstance(part, ast.Slice) for part in parts) else "TPU214"


def _of_place(node: ast.AST, parent: ast.AST | None) -> str | None:
    match parent:
        case ast.Assert(test=test) if test is node:
            return "TPU206"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if test is node:
            return "TPU205"
        case ast.comprehension(ifs=conditions) if node in conditions:
            return "TPU205"
    return None
