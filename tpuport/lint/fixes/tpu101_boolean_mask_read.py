"""TPU101: boolean-mask reads whose use needs no dynamic length."""

import dataclasses

import libcst as cst

from tpuport.lint.fixes.masks import aligned, masked_read, same_shape
from tpuport.lint.fixes.place import Place, is_simple, method
from tpuport.lint.fixes.reordering import reordered
from tpuport.lint.fixes.rewrite import Edit, Rewrite
from tpuport.lint.fixes.statements import with_name
from tpuport.lint.fixes.tpu113_boolean_mask_write import rewrite as mask_write


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """A read that is written through the same mask, reduced, or put beside the rest in another order."""
    assert isinstance(node, cst.Subscript)
    statement = place.enclosing(node, cst.Assign, cst.AugAssign, cst.FunctionDef, cst.Lambda)
    if isinstance(statement, cst.Assign | cst.AugAssign):
        target = statement.target if isinstance(statement, cst.AugAssign) else statement.targets[0].target
        if masked_read(target) is not None:
            return mask_write(statement, place)
    edit = reordered(place, node) or _reduced(place, node)
    return edit and dataclasses.replace(edit, unsafe=True)


def _reduced(place: Place, node: cst.Subscript) -> Edit | None:
    """`x[mask].sum()` as a sum over all, with what leaves a sum alone in the place of the rest."""
    found = masked_read(node)
    attribute = place.parent(node)
    call = place.parent(attribute) if isinstance(attribute, cst.Attribute) else None
    torch = place.torch(node)
    if (
        found is None
        or torch is None
        or not isinstance(call, cst.Call)
        or call.func is not attribute
        or call.args
    ):
        return None
    base, mask = found.base, found.mask
    name = method(call)
    neutral = {"sum": "0", "mean": "0", "any": "False", "all": "True"}.get(name)
    if neutral is None:
        return None
    if found.lead < 0 or (found.lead == 0 and same_shape(place, mask, base)):
        new = place.expression(_sum(place, name, neutral, base, mask, place.code(mask), torch[0]))
        return Edit(((call, new),), imports=torch[1])

    def over_all(mask: str) -> cst.BaseExpression:
        condition = aligned(mask, place.code(base), found.lead)
        return place.expression(_sum(place, name, neutral, base, place.expression(mask), condition, torch[0]))

    if is_simple(mask):
        return Edit(((call, over_all(place.code(mask))),), imports=torch[1])
    edit = with_name(place, call, "selected", place.code(mask), over_all)
    return edit and dataclasses.replace(edit, imports=torch[1])


def _sum(
    place: Place,
    name: str,
    neutral: str,
    base: cst.BaseExpression,
    mask: cst.BaseExpression,
    condition: str,
    torch: str,
) -> str:
    """Text of the reduction over all of the base."""
    values = place.code(base)
    chosen = f"{torch}.where({condition}, {values}, {neutral})"
    if name != "mean":
        return f"{chosen}.{name}()"
    text = place.operand(mask)
    return f"({chosen}.sum() / ({text}.sum() * ({values}.numel() // {text}.numel())))"


REWRITE = Rewrite("TPU101", (cst.Subscript,), rewrite)
