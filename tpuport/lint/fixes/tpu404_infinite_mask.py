"""TPU404: minus infinity as the lowest finite number."""

import libcst as cst

from tpuport.lint.fixes.names import walk
from tpuport.lint.fixes.place import Place, is_simple, keyword, method, receiver
from tpuport.lint.fixes.rewrite import Edit, Rewrite


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """In `x.masked_fill(mask, -inf)`, `torch.where(mask, x, -inf)` and `torch.full(size, -inf, dtype=...)`."""
    call = node if isinstance(node, cst.Call) and not _is_lowest(place, node) else _call_around(place, node)
    value = _infinity(place, call) if call is not None else None
    if call is None or value is None:
        return None
    dtype = _dtype(place, call)
    torch = place.torch(call)
    if dtype is None or torch is None:
        return None
    new = place.expression(f"{torch[0]}.finfo({dtype.replace('torch.', f'{torch[0]}.')}).min")
    return Edit(((value, new),), True, torch[1])


def _call_around(place: Place, node: cst.CSTNode) -> cst.Call | None:
    above = place.parent(node)
    call = place.parent(above) if isinstance(above, cst.Arg) else None
    return call if isinstance(call, cst.Call) else None


def _infinity(place: Place, call: cst.Call) -> cst.BaseExpression | None:
    """The one argument that is minus infinity."""
    found = [arg.value for arg in call.args if _is_lowest(place, arg.value)]
    return found[0] if len(found) == 1 else None


def _is_lowest(place: Place, node: cst.BaseExpression) -> bool:
    """`float("-inf")`, `-float("inf")`, `-torch.inf`, `-math.inf`."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inside = node.expression
        return _float_of(inside) in {"inf", "infinity"} or place.dotted(inside) in {
            "math.inf",
            "torch.inf",
            "numpy.inf",
        }
    return _float_of(node) in {"-inf", "-infinity"}


def _float_of(node: cst.BaseExpression) -> str:
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name) or node.func.value != "float":
        return ""
    texts = [part.evaluated_value for part in walk(node) if isinstance(part, cst.SimpleString)]
    return str(texts[0]).strip().lower() if len(texts) == 1 else ""


def _dtype(place: Place, call: cst.Call) -> str | None:
    """Text for the dtype of what is filled."""
    if method(call) in {"masked_fill", "masked_fill_"} and not place.dotted(call.func):
        return _dtype_of(place, receiver(call))
    if place.is_torch(call, "masked_fill", "full_like") and not keyword(call, "dtype"):
        return _dtype_of(place, call.args[0].value)
    if place.is_torch(call, "where") and len(call.args) == 3:
        other = [arg.value for arg in call.args[1:] if not _is_lowest(place, arg.value)]
        return _dtype_of(place, other[0]) if len(other) == 1 else None
    if place.is_torch(call, "full", "full_like"):
        given = keyword(call, "dtype")
        if given is None:
            return "torch.get_default_dtype()"
        return place.code(given.value) if is_simple(given.value) else None
    return None


def _dtype_of(place: Place, value: cst.BaseExpression) -> str | None:
    return f"{place.code(value)}.dtype" if is_simple(value) else None


REWRITE = Rewrite("TPU404", (cst.Call, cst.UnaryOperation), rewrite)
