"""TPU101: boolean-mask reads whose use needs no dynamic length."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.boolean_masks import MaskedAccess, masked_access
from tpuport.lint.fixes.edits import Edit, Rewrite, introduce_name, mark_unsafe
from tpuport.lint.fixes.mask_reordering import reorder_masked_reads
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, is_simple, method_name, require, require_kind
from tpuport.lint.fixes.tpu113_boolean_mask_write import rewrite as rewrite_mask_write

# What to put in the place of the masked-out values: it leaves the reduction as it is.
_NEUTRAL_VALUES: Final = {"sum": "0", "mean": "0", "any": "False", "all": "True"}


def rewrite(node: cst.Subscript, site: Site) -> Edit | None:
    """Rewrite a read that is written through the same mask, reduced, or concatenated with the rest."""
    # `x[mask] = y[mask] * 2` is one rewrite, of the whole assignment.
    statement = site.enclosing(node, cst.Assign, cst.AugAssign, cst.FunctionDef, cst.Lambda)
    match statement:
        case cst.Assign(targets=[cst.AssignTarget(target=target), *_]) | cst.AugAssign(target=target):
            if masked_access(target) is not None:
                return rewrite_mask_write(statement, site)
    return mark_unsafe(reorder_masked_reads(site, node) or _rewrite_reduction(site, node))


def _rewrite_reduction(site: Site, node: cst.Subscript) -> Edit | None:
    """`x[mask].sum()` as a sum over all elements, with a neutral value in the place of the others."""
    access = require(masked_access(node))
    torch = site.torch_name(node)
    attribute = require(site.parent(node))
    call = require_kind(site.parent(attribute), cst.Call)
    method = method_name(call)
    expect(method in _NEUTRAL_VALUES and call.func is attribute and not call.args)

    def build(mask: str) -> cst.BaseExpression:
        condition = mask if access.covers_whole_base(site) else access.aligned_mask(site, mask)
        return site.expression(_reduction_text(site, method, access, mask, condition, torch.name))

    # An alignment repeats the mask, which therefore needs a name unless it is one.
    if access.covers_whole_base(site) or is_simple(access.mask):
        return Edit(((call, build(site.code(access.mask))),), imports=torch.imports)
    edit = introduce_name(site, call, "selected", site.code(access.mask), build)
    return edit and Edit(edit.changes, imports=torch.imports, names=edit.names)


def _reduction_text(
    site: Site, method: str, access: MaskedAccess, mask: str, condition: str, torch: str
) -> str:
    """Text of the reduction over all of the base."""
    base = site.code(access.base)
    values = f"{torch}.where({condition}, {base}, {_NEUTRAL_VALUES[method]})"
    if method != "mean":
        return f"{values}.{method}()"
    mask = site.operand(site.expression(mask))
    # Each selected position of the mask stands for this many elements of the base.
    elements_per_position = f"({base}.numel() // {mask}.numel())"
    return f"({values}.sum() / ({mask}.sum() * {elements_per_position}))"


REWRITE = Rewrite("TPU101", (cst.Subscript,), rewrite)
