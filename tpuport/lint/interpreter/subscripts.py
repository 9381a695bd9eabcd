"""What subscripts may be: elements and slices of tensors, sequences and mappings."""

import ast
import builtins
from typing import Any, Final

from tpuport.lint.abstract_values import (
    BOOL_TENSOR,
    INT,
    NONE,
    NOT_CONSTANT,
    SLICE,
    STATIC,
    TENSOR,
    UNKNOWN,
    Choice,
    External,
    Function,
    Instance,
    Layer,
    Mapping,
    Namespace,
    Partial,
    Sequence,
    Static,
    Tensor,
    Unknown,
    Value,
    changed,
    tensor,
)
from tpuport.lint.events import SliceBound, Subscript
from tpuport.lint.gpu_packages import names_gpu_implementation
from tpuport.lint.interpreter import derived_values
from tpuport.lint.interpreter.frame import Frame, tuple_elements
from tpuport.lint.interpreter.members import item
from tpuport.lint.joins import join_all

_STATIC_ITEMS: Final[dict[str, Value]] = {"shape": INT, "config": Static("config")}
_SLICED_KINDS: Final = frozenset({"tuple", "list", "modules", "sequential"})
# What transformers' table of activation functions contains, as an example.
_ACTIVATION: Final = Layer("torch.nn.SiLU")


def evaluate_indices(frame: Frame, node: ast.Subscript, base: Value) -> list[Value]:
    """Values of an index's parts. Rules hear of the bounds of slices."""
    return [_evaluate_index(frame, part, base) for part in tuple_elements(node.slice)]


def _evaluate_index(frame: Frame, node: ast.expr, base: Value) -> Value:
    match node:
        case ast.Slice(lower=lower, upper=upper, step=step):
            for bound in filter(None, (lower, upper, step)):
                frame.report(SliceBound(bound, base, frame.evaluate(bound)))
            return SLICE
        case ast.Starred(value=starred):
            return frame.evaluate(starred)
        case _:
            index = frame.evaluate(node)
            _report_bounds(frame, node, base, index)
            return index


def _report_bounds(frame: Frame, node: ast.expr, base: Value, index: Value) -> None:
    """Let the rules hear of the bounds of slices that an index has by name."""
    match index:
        case Sequence(kind="slice", items=tuple(bounds)):
            for bound in bounds:
                frame.report(SliceBound(node, base, bound))
        case Sequence(kind="tuple", items=tuple(parts)):
            for part in parts:
                _report_bounds(frame, node, base, part)
        case Sequence(kind="tuple", items=None, element=Sequence() as part):
            _report_bounds(frame, node, base, part)


def evaluate_subscript(frame: Frame, node: ast.Subscript) -> Value:
    """`x[...]` as it is read."""
    base = frame.evaluate(node.value)
    indices = evaluate_indices(frame, node, base)
    # `x[x > 0]`: no other object has its own comparison as an index, in traced code.
    is_own = (base, *indices) == (UNKNOWN, UNKNOWN) and _is_own_comparison(node)
    if is_own and frame.building is None:
        base = TENSOR
        indices[0] = BOOL_TENSOR
    event = Subscript(node, base, indices)
    read = frame.report(event)
    if read is not None:
        base = base if isinstance(base, Tensor) else TENSOR
        return changed(_indexed_tensor(base, indices), masked_read=read)
    return _item(frame, node, base, indices)


def _item(
    frame: Frame, node: ast.Subscript, base: Value, indices: list[Value]
) -> Value:
    # `x[()]` has none.
    first = next(iter(indices), UNKNOWN)
    match base:
        # What has keys is not a tensor, whatever it was taken for.
        case Tensor() if first.kind == "str":
            return UNKNOWN
        case Tensor():
            keeps_size = all(map(_keeps_size, tuple_elements(node.slice)))
            return derived_values.of_operator(
                "getitem",
                _indexed_tensor(base, indices),
                base,
                *indices,
                keeps_size=keeps_size,
            )
        case Sequence():
            # `x[:, 0]`: annotated as a list or tuple, but used as the tensor that it
            # is.
            if len(indices) != 1:
                return TENSOR
            return _indexed_sequence(base, first, node.slice)
        case Mapping():
            # Of an unknown key, what the entries have in common.
            return (
                _some_entry(base)
                if first.constant is NOT_CONSTANT
                else base.get(first.constant)
            )
        case Static(kind="shape") if isinstance(node.slice, ast.Slice):
            return base
        case Static(kind=kind):
            return _STATIC_ITEMS.get(kind, STATIC)
        case Instance():
            return item(frame, base, first)
        case _:
            return _item_of_other(frame, base, first, node.slice)


def _is_own_comparison(node: ast.Subscript) -> bool:
    """Whether what is indexed is compared in the index."""
    match node.slice:
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]):
            return ast.dump(left) == ast.dump(node.value)
        case _:
            return False


def _item_of_other(frame: Frame, base: Value, first: Value, index: ast.expr) -> Value:
    match base:
        case External() if base.name.endswith("ACT2FN"):
            return _ACTIVATION
        # A packed sequence is a named tuple.
        case Namespace(attributes=attributes):
            parts = tuple(part for _, part in attributes)
            return _indexed_sequence(
                Sequence("tuple", parts, join_all(parts)), first, index
            )
        # In traced code, what has several dimensions is a tensor; a constructor
        # computes with arrays of NumPy.
        case Unknown() if _is_of_dimensions(index) and frame.building is None:
            return TENSOR
        case _:
            return UNKNOWN


def _is_of_dimensions(index: ast.expr) -> bool:
    """Whether it is an index of several dimensions, such as `:, 0` and `..., 4`."""
    parts = tuple_elements(index)
    return len(parts) > 1 and any(map(_is_of_any_size, parts))


def _is_of_any_size(part: ast.expr) -> bool:
    """Whether a part of an index leaves a dimension, `:` or `...`."""
    match part:
        case ast.Slice() | ast.Constant(value=builtins.Ellipsis):
            return True
        case _:
            return False


def _keeps_size(part: ast.expr) -> bool:
    """Whether a part of an index certainly leaves more than one element of several:
    `None`, `...`, `:`, `:n`.
    """
    match part:
        case ast.Constant(value=None) | ast.Constant(value=builtins.Ellipsis):
            return True
        case ast.Slice(lower=lower, upper=upper):
            return not any(
                isinstance(bound, ast.Constant | ast.UnaryOp)
                for bound in (lower, upper)
            )
        case _:
            return False


def _some_entry(base: Mapping) -> Value:
    """An entry of a table of classes or functions, whose key is in a configuration.

    It does not choose an implementation that needs a GPU if there is another one.
    """
    values = [value for key, value in base.entries if not names_gpu_implementation(key)]
    values = values or base.values
    if not values:
        return base.element
    if base.element is not UNKNOWN:
        return join_all([*values, base.element])
    # Beside functions, None and what is not known stand for functions that are missing
    # here.
    functions = [
        value for value in values if isinstance(value, Function | Partial | Choice)
    ]
    if all(value is UNKNOWN or value == NONE or value in functions for value in values):
        values = functions or values
    joint = join_all(values)
    if not functions and len(set(map(type, values))) > 1:
        return joint
    # Too many to try them all: the first shows what they do.
    return values[0] if joint is UNKNOWN else joint


def _indexed_sequence(base: Sequence, index: Value, node: ast.expr) -> Value:
    if isinstance(node, ast.Slice):
        return _sliced(base, node)
    match base.items, index.constant:
        case tuple(items), int(position) if -len(items) <= position < len(items):
            return items[position]
        case tuple(), int():
            return UNKNOWN
        case _:
            return base.element


def _sliced(base: Sequence, node: ast.Slice) -> Value:
    kind = base.kind if base.kind in _SLICED_KINDS else "list"
    bounds = list(map(_literal_bound, (node.lower, node.upper, node.step)))
    if base.items is None or NOT_CONSTANT in bounds:
        return Sequence(kind, None, base.element, base.tensors)
    items = base.items[slice(*bounds)]
    return Sequence(kind, items, join_all(items))


def _literal_bound(node: ast.expr | None) -> Any:
    """`3` or `-3`, None where no bound is written; `NOT_CONSTANT` for anything else."""
    match node:
        case None:
            return None
        case ast.Constant(value=int(integer)):
            return integer
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(integer))):
            return -integer
        case _:
            return NOT_CONSTANT


def _indexed_tensor(base: Tensor, indices: list[Value]) -> Tensor:
    # Indexing with tensors or lists copies, and may give any number of dimensions.
    if any(isinstance(index, Tensor | Sequence) for index in indices):
        return tensor(base.dtype, base.exact, origin=base.inherited_origin)
    ndim, origin = base.ndim, base.inherited_origin
    kinds = [index.kind for index in indices]
    if ndim >= 0:
        # An integer removes a dimension, None adds one.
        ndim = max(ndim + kinds.count("none") - kinds.count("int"), 0)
    elif set(kinds) == {"int"}:
        origin = origin or "element"
    return tensor(base.dtype, base.exact, ndim, view=True, origin=origin)
