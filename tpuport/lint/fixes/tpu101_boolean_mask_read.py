"""TPU101: boolean-mask reads whose use needs no dynamic length."""

import dataclasses
from typing import Final

import libcst as cst

from tpuport.lint.fixes.boolean_masks import MaskedAccess, masked_access
from tpuport.lint.fixes.edits import (
    Edit,
    Rewrite,
    introduce_name,
    mark_unsafe,
    replace_node,
)
from tpuport.lint.fixes.mask_reordering import reorder_masked_reads
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    expect,
    is_simple,
    method_name,
    require,
    require_kind,
)
from tpuport.lint.fixes.tpu113_boolean_mask_write import rewrite as rewrite_mask_write

# What to put in the place of the masked-out values: it leaves the reduction as it is.
_NEUTRAL_VALUES: Final = {"sum": "0", "mean": "0", "any": "False", "all": "True"}


def rewrite(node: cst.Subscript, site: Site) -> Edit:
    """Rewrite a read that is written through the same mask, reduced, or concatenated
    with the rest.
    """
    # `x[mask] = y[mask] * 2` is one rewrite, of the whole assignment.
    statement = site.enclosing(
        node, cst.Assign, cst.AugAssign, cst.FunctionDef, cst.Lambda
    )
    match statement:
        case (
            cst.Assign(targets=[cst.AssignTarget(target=target), *_])
            | cst.AugAssign(target=target)
        ):
            if masked_access(target) is not None:
                return rewrite_mask_write(statement, site)
    # Unsafe, because sums are added in another order, and NaN times zero is NaN.
    return mark_unsafe(
        reorder_masked_reads(site, node) or _rewrite_reduction(site, node)
    )


def _rewrite_reduction(site: Site, node: cst.Subscript) -> Edit:
    """`x[mask].sum()` as a sum over all elements, with a neutral value in the place of
    the others.
    """
    access = require(masked_access(node))
    torch = site.torch_name(node)
    attribute = require(site.parent(node))
    call = require_kind(site.parent(attribute), cst.Call)
    # Arguments (`dim=0`) mean dimensions of the selection, not of the base.
    expect(call.func is attribute and not call.args)
    method = method_name(call)
    expect(method in _NEUTRAL_VALUES)

    def build(mask: str) -> cst.BaseExpression:
        return site.expression(_reduction_text(site, method, access, mask, torch.name))

    # An alignment repeats the mask, which therefore needs a name unless it is one.
    if access.covers_whole_base(site) or is_simple(access.mask):
        return replace_node(call, build(site.code(access.mask)), imports=torch.imports)
    edit = require(
        introduce_name(site, call, "selected", site.code(access.mask), build)
    )
    return dataclasses.replace(edit, imports=torch.imports)


def _reduction_text(
    site: Site, method: str, access: MaskedAccess, mask: str, torch: str
) -> str:
    """Text of the reduction over all of the base."""
    condition = mask
    if not access.covers_whole_base(site):
        condition = access.aligned_mask(site, mask)
    base = site.code(access.base)
    values = f"{torch}.where({condition}, {base}, {_NEUTRAL_VALUES[method]})"
    # A mean divides by the number of selected elements, not by the size of the base.
    if method != "mean":
        return f"{values}.{method}()"
    mask = site.operand(site.expression(mask))
    # Each selected position of the mask stands for this many elements of the base.
    elements_per_position = f"({base}.numel() // {mask}.numel())"
    return f"({values}.sum() / ({mask}.sum() * {elements_per_position}))"


REWRITE = Rewrite("TPU101", (cst.Subscript,), rewrite)
