"""TPU102: indices of true elements that are only used as an index, as the mask
itself.
"""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.boolean_masks import boolean_text
from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    expect,
    is_name,
    keyword_value,
    name_uses,
    receiver,
    require,
    single_index,
)
from tpuport.lint.fixes.tensors import only_assignment

_REDUCTIONS: Final = frozenset({"sum", "mean", "any", "all"})


def rewrite(node: cst.Call, site: Site) -> Edit:
    """`x[torch.where(mask)] = v` as `x[mask] = v`; so too for a name that is only the
    index of such writes.
    """
    mask = require(_mask(node, site))
    if isinstance(site.parent(node), cst.Index):
        subscript = _subscript_indexed_by(site, node)
        # TPU101 and TPU113 rewrite these uses of a mask, and no others.
        is_rewritable = _is_written(site, subscript) or _is_reduced(site, subscript)
    else:
        is_rewritable = _is_bound_for_writes(site, node)
    expect(is_rewritable)
    return replace_node(node, site.expression(boolean_text(site, mask)))


def _mask(call: cst.Call, site: Site) -> cst.BaseExpression | None:
    """The mask in the forms that return one vector of indices for each dimension."""
    match call.args:
        case [cst.Arg(value=mask, keyword=None, star="")] if site.is_torch_call(
            call, "where"
        ):
            return mask
        case [cst.Arg(value=mask, keyword=None, star=""), _] if site.is_torch_call(
            call, "nonzero"
        ):
            expect(is_name(keyword_value(call, "as_tuple"), "True"))
            return mask
        case [_] if site.method_of_value(call) == "nonzero":
            expect(is_name(keyword_value(call, "as_tuple"), "True"))
            return receiver(call)
    return None


def _subscript_indexed_by(site: Site, index: cst.CSTNode) -> cst.Subscript | None:
    """The subscript of which the node is the only index."""
    match site.enclosing(index, cst.Subscript):
        case cst.Subscript() as subscript if single_index(subscript) is index:
            return subscript
    return None


def _is_written(site: Site, subscript: cst.Subscript | None) -> bool:
    match site.parent(subscript):
        case cst.AssignTarget():
            return True
        case cst.AugAssign(target=target):
            return target is subscript
    return False


def _is_reduced(site: Site, subscript: cst.Subscript | None) -> bool:
    match site.parent(subscript):
        case cst.Attribute(attr=cst.Name(value=name)):
            return name in _REDUCTIONS
    return False


def _is_bound_for_writes(site: Site, call: cst.Call) -> bool:
    """`indices = torch.where(mask)`, and then nothing but `x[indices] = v`."""
    function = require(site.enclosing_function(call))
    match site.parent(call):
        case (
            cst.Assign(
                targets=[cst.AssignTarget(target=cst.Name() as target)]
            ) as assignment
        ):
            # Another value of the name might be positions.
            expect(only_assignment(site, function, target.value) is assignment)
            uses = set(name_uses(function, target.value)) - {target}
            return all(
                _is_written(site, _subscript_indexed_by(site, use)) for use in uses
            )
    return False


REWRITE = Rewrite("TPU102", (cst.Call,), rewrite)
