"""TPU113: writes through a boolean mask, as a choice between two tensors."""

import libcst as cst

from tpuport.lint.fixes.aliasing import can_be_rebound, is_private
from tpuport.lint.fixes.masks import MaskedRead, aligned, is_scalar, masked_read, same_shape
from tpuport.lint.fixes.names import uses, walk
from tpuport.lint.fixes.place import FunctionNode, Place, is_simple
from tpuport.lint.fixes.rewrite import Edit, Rewrite, Statements

_OPERATORS = {
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.PowerAssign: "**",
}


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`x[mask] = v` and `x[mask] *= v`, where x is a local name, and v a number or reads through the same mask."""
    assert isinstance(node, cst.Assign | cst.AugAssign)
    target = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
    found = masked_read(target)
    function = place.function(node)
    if found is None or function is None or (isinstance(node, cst.Assign) and len(node.targets) > 1):
        return None
    base = found.base
    if not isinstance(base, cst.Name) or not can_be_rebound(place, base, function):
        return None
    value = _new_value(place, node, found)
    torch = place.torch(node)
    line = place.line(node)
    if value is None or torch is None or line is None:
        return None
    before, condition = _condition(place, found, function)
    text = f"{base.value} = {torch[0]}.where({condition}, {value}, {base.value}){_cast(place, node, base)}"
    last = place.statement(text).with_changes(trailing_whitespace=line.trailing_whitespace)
    first, *rest = *before, last
    new = Statements((first.with_changes(leading_lines=line.leading_lines), *rest))
    risky = not is_private(place, base, function) or _may_divide_by_zero(place, node)
    return Edit(((line, new),), risky, torch[1], ("selected",) if before else ())


def _new_value(place: Place, node: cst.Assign | cst.AugAssign, written: MaskedRead) -> str | None:
    value = _whole(place, node.value, written)
    if value is None or isinstance(node, cst.Assign):
        return value
    operator = _OPERATORS.get(type(node.operator))
    simple = isinstance(node.value, cst.Subscript | cst.Name | cst.Integer | cst.Float) or node.value.lpar
    return operator and f"{place.code(written.base)} {operator} {value if simple else f'({value})'}"


def _condition(
    place: Place, written: MaskedRead, function: FunctionNode
) -> tuple[list[cst.BaseStatement], str]:
    """The mask, to be broadcast as an index is: statements to go before, and the text."""
    mask, base = written.mask, place.code(written.base)
    if written.lead < 0 or (written.lead == 0 and same_shape(place, mask, written.base)):
        return [], place.code(mask)
    if is_simple(mask):
        return [], aligned(place.code(mask), base, written.lead)
    name = "selected"
    while uses(function, name):
        name += "_"
    return [place.statement(f"{name} = {place.code(mask)}")], aligned(name, base, written.lead)


def _may_divide_by_zero(place: Place, node: cst.Assign | cst.AugAssign) -> bool:
    """Outside the mask the division gives inf or NaN; it is not chosen, but its gradient is NaN all the same."""
    risky = (cst.Divide, cst.Power, cst.DivideAssign, cst.PowerAssign, cst.Modulo, cst.ModuloAssign)
    return not is_scalar(place, node.value) and any(isinstance(part, risky) for part in walk(node))


def _cast(place: Place, node: cst.Assign | cst.AugAssign, base: cst.Name) -> str:
    """A write keeps the dtype of what is written to; `torch.where` promotes, but not for a number in arithmetic."""
    keeps = isinstance(node, cst.AugAssign) and is_scalar(place, node.value)
    return "" if keeps else f".to({base.value}.dtype)"


def _whole(place: Place, value: cst.BaseExpression, written: MaskedRead) -> str | None:
    """Text of a value for all places, of a value for the masked ones; None if it may depend on which these are."""
    if is_scalar(place, value):
        return place.code(value)
    if isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Minus):
        inside = _whole(place, value.expression, written)
        text = (
            f"-{inside}"
            if isinstance(value.expression, cst.Subscript) or value.expression.lpar
            else f"-({inside})"
        )
        return inside and (f"({text})" if value.lpar else text)
    if isinstance(value, cst.BinaryOperation) and not isinstance(value.operator, cst.MatrixMultiply):
        left, right = _whole(place, value.left, written), _whole(place, value.right, written)
        if left is None or right is None:
            return None
        operator = place.code(value.operator)
        return f"({left}{operator}{right})" if value.lpar else f"{left}{operator}{right}"
    found = masked_read(value)
    if found is None or found.lead != written.lead or _changes(found.mask):
        return None
    return place.code(found.base) if place.code(found.mask) == place.code(written.mask) else None


def _changes(mask: cst.BaseExpression) -> bool:
    """Whether evaluating the mask once more, or not at all, may matter."""
    return any(isinstance(node, cst.NamedExpr | cst.Await | cst.Yield) for node in walk(mask))


REWRITE = Rewrite("TPU113", (cst.Assign, cst.AugAssign), rewrite)
