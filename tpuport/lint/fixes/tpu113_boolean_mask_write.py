"""TPU113: writes through a boolean mask, as a choice between two tensors."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.boolean_masks import MaskedAccess, is_scalar, masked_access
from tpuport.lint.fixes.edits import Edit, Rewrite, Statements, unused_name
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import contains, expect, is_simple, require, require_kind
from tpuport.lint.fixes.tensors import can_be_rebound, is_private

_OPERATORS: Final = {
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.PowerAssign: "**",
}
# Operators that may give inf or NaN.
_RISKY_OPERATORS: Final = (
    cst.Divide,
    cst.Power,
    cst.Modulo,
    cst.DivideAssign,
    cst.PowerAssign,
    cst.ModuloAssign,
)

_Assignment = cst.Assign | cst.AugAssign


def rewrite(node: _Assignment, site: Site) -> Edit:
    """`x[mask] = v` and `x[mask] *= v`, if x is a local name, and v a number or read
    through the same mask.
    """
    access = require(_written_access(node))
    function = require(site.enclosing_function(node))
    line = require(site.statement_line(node))
    torch = site.torch_name(node)
    base = require_kind(access.base, cst.Name)
    expect(can_be_rebound(site, base, function))
    value = _new_value(site, node, access)
    mask = site.code(access.mask)
    statements: list[cst.BaseStatement] = []
    names: tuple[str, ...] = ()
    if not access.covers_whole_base(site):
        # An alignment repeats the mask, which therefore needs a name unless it is one.
        if not is_simple(access.mask):
            name = unused_name(function, "selected")
            statements.append(site.statement(f"{name} = {mask}"))
            names = ("selected",)
            mask = name
        mask = access.aligned_mask(site, mask)
    cast = _cast_text(site, node, base.value)
    choice = site.statement(
        f"{base.value} = {torch.name}.where({mask}, {value}, {base.value}){cast}"
    )
    statements.append(choice.with_changes(trailing_whitespace=line.trailing_whitespace))
    first, *others = statements
    replacement = Statements(
        (first.with_changes(leading_lines=line.leading_lines), *others)
    )
    is_unsafe = _may_divide_by_zero(site, node) or not is_private(site, base, function)
    return Edit(((line, replacement),), is_unsafe, torch.imports, names)


def _written_access(node: _Assignment) -> MaskedAccess | None:
    match node:
        case (
            cst.Assign(targets=[cst.AssignTarget(target=target)])
            | cst.AugAssign(target=target)
        ):
            return masked_access(target)
    return None


def _new_value(site: Site, node: _Assignment, access: MaskedAccess) -> str:
    """Text of what to write, for all elements."""
    value = _unmasked_text(site, node.value, access)
    if isinstance(node, cst.Assign):
        return value
    operator = require(_OPERATORS.get(type(node.operator)))
    is_atom = isinstance(node.value, cst.Subscript | cst.Name | cst.Integer | cst.Float)
    if not is_atom and not node.value.lpar:
        value = f"({value})"
    return f"{site.code(access.base)} {operator} {value}"


def _may_divide_by_zero(site: Site, node: _Assignment) -> bool:
    """Whether elements outside the mask may give inf or NaN: they are not chosen, but
    their gradient is NaN still.
    """
    return not is_scalar(site, node.value) and contains(node, *_RISKY_OPERATORS)


def _cast_text(site: Site, node: _Assignment, name: str) -> str:
    """A write keeps the dtype of what it writes to; `torch.where` promotes, except for
    numbers in arithmetic.
    """
    if isinstance(node, cst.AugAssign) and is_scalar(site, node.value):
        return ""
    return f".to({name}.dtype)"


def _unmasked_text(site: Site, value: cst.BaseExpression, access: MaskedAccess) -> str:
    """Text of a value for all elements, from one for the masked ones.

    Raises:
        CannotRewriteError: the value may depend on which elements are masked.
    """
    if is_scalar(site, value):
        return site.code(value)
    match value:
        case cst.UnaryOperation(operator=cst.Minus(), expression=operand):
            text = _unmasked_text(site, operand, access)
            if not isinstance(operand, cst.Subscript) and not operand.lpar:
                text = f"({text})"
            text = f"-{text}"
        case cst.BinaryOperation(left=left, operator=operator, right=right):
            # A matrix product mixes the elements.
            expect(not isinstance(operator, cst.MatrixMultiply))
            left_text = _unmasked_text(site, left, access)
            text = (
                f"{left_text}{site.code(operator)}{_unmasked_text(site, right, access)}"
            )
        case _:
            return _base_text(site, value, access)
    return f"({text})" if value.lpar else text


def _base_text(site: Site, value: cst.BaseExpression, access: MaskedAccess) -> str:
    """`y` for `y[mask]` with the mask that is written through."""
    read = require(masked_access(value))
    expect((read.lead, site.code(read.mask)) == (access.lead, site.code(access.mask)))
    # It matters how often the mask is evaluated if that has an effect.
    expect(not contains(read.mask, cst.NamedExpr, cst.Await, cst.Yield))
    return site.code(read.base)


REWRITE = Rewrite("TPU113", (cst.Assign, cst.AugAssign), rewrite)
