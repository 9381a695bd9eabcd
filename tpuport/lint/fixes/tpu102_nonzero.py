"""TPU102: places of true elements that are only an index, as the mask itself."""

import libcst as cst

from tpuport.lint.fixes.aliasing import assigned_once
from tpuport.lint.fixes.masks import as_boolean
from tpuport.lint.fixes.names import uses
from tpuport.lint.fixes.place import Place, keyword, method, positional, receiver, subscript_index
from tpuport.lint.fixes.rewrite import Edit, Rewrite


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`x[torch.where(mask)] = v` as `x[mask] = v`; so too a name for the places that is only an index of writes."""
    assert isinstance(node, cst.Call)
    mask = _mask(node, place)
    if mask is None:
        return None
    above = place.parent(node)
    if isinstance(above, cst.Index):
        indexed = place.parent(place.parent(above) or above)
        if not isinstance(indexed, cst.Subscript) or subscript_index(indexed) is not node:
            return None
        if not (_is_written(place, indexed) or _is_reduced(place, indexed)):
            return None
    elif not _only_written_through(place, node):
        return None
    return Edit(((node, place.expression(as_boolean(place, mask))),))


def _mask(call: cst.Call, place: Place) -> cst.BaseExpression | None:
    """The mask of the forms that give one vector of places for each dimension."""
    given = positional(call)
    if given is None:
        return None
    as_tuple = keyword(call, "as_tuple")
    is_tuple = as_tuple is not None and place.code(as_tuple.value) == "True"
    if place.is_torch(call, "where") and len(call.args) == len(given) == 1:
        return given[0]
    if place.is_torch(call, "nonzero") and len(given) == 1 and is_tuple and len(call.args) == 2:
        return given[0]
    if (
        method(call) == "nonzero"
        and not place.dotted(call.func)
        and not given
        and is_tuple
        and len(call.args) == 1
    ):
        return receiver(call)
    return None


def _is_written(place: Place, subscript: cst.Subscript) -> bool:
    above = place.parent(subscript)
    return isinstance(above, cst.AssignTarget) or (
        isinstance(above, cst.AugAssign) and above.target is subscript
    )


def _is_reduced(place: Place, subscript: cst.Subscript) -> bool:
    """`x[places].sum()`: what TPU101 rewrites once it is `x[mask].sum()`."""
    above = place.parent(subscript)
    return isinstance(above, cst.Attribute) and above.attr.value in {"sum", "mean", "any", "all"}


def _only_written_through(place: Place, call: cst.Call) -> bool:
    """`places = torch.where(mask)`, and then nothing but `x[places] = v`."""
    assign = place.parent(call)
    function = place.function(call)
    if not isinstance(assign, cst.Assign) or function is None or len(assign.targets) != 1:
        return False
    target = assign.targets[0].target
    if not isinstance(target, cst.Name) or assigned_once(place, function, target.value) is not assign:
        return False
    for use in uses(function, target.value):
        if use is target:
            continue
        index = place.parent(use)
        indexed = place.parent(place.parent(index) or index) if isinstance(index, cst.Index) else None
        if not isinstance(indexed, cst.Subscript) or subscript_index(indexed) is not use:
            return False
        if not _is_written(place, indexed):
            return False
    return True


REWRITE = Rewrite("TPU102", (cst.Call,), rewrite)
