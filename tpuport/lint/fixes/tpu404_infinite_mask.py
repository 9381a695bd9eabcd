"""TPU404: minus infinity as the lowest finite number."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import called_name, is_simple, keyword_argument, receiver, walk

_INFINITIES: Final = frozenset({"math.inf", "torch.inf", "numpy.inf"})


def rewrite(node: cst.BaseExpression, site: Site) -> Edit | None:
    """In `x.masked_fill(mask, -inf)`, `torch.where(mask, x, -inf)` and `torch.full(size, -inf, dtype=...)`."""
    is_call = isinstance(node, cst.Call) and not _is_minus_infinity(site, node)
    call = node if is_call else site.argument_of(node)
    if not isinstance(call, cst.Call):
        return None
    infinities = [argument.value for argument in call.args if _is_minus_infinity(site, argument.value)]
    dtype = _dtype_text(site, call)
    torch = site.torch_name(call)
    if len(infinities) != 1 or dtype is None or torch is None:
        return None
    dtype = dtype.replace("torch.", f"{torch.name}.")
    new = site.expression(f"{torch.name}.finfo({dtype}).min")
    return replace_node(infinities[0], new, unsafe=True, imports=torch.imports)


def _is_minus_infinity(site: Site, node: cst.BaseExpression) -> bool:
    """`float("-inf")`, `-float("inf")`, `-torch.inf`, `-math.inf`."""
    match node:
        case cst.UnaryOperation(operator=cst.Minus(), expression=operand):
            is_infinite_float = _text_in_float(operand) in {"inf", "infinity"}
            return is_infinite_float or site.dotted_name(operand) in _INFINITIES
    return _text_in_float(node) in {"-inf", "-infinity"}


def _text_in_float(node: cst.BaseExpression) -> str:
    """`text` in `float("text")`; "" for any other node."""
    if called_name(node) != "float":
        return ""
    texts = [part.evaluated_value for part in walk(node) if isinstance(part, cst.SimpleString)]
    return str(texts[0]).strip().lower() if len(texts) == 1 else ""


def _dtype_text(site: Site, call: cst.Call) -> str | None:
    """Text for the dtype of the tensor that is filled."""
    dtype = keyword_argument(call, "dtype")
    if site.method_of_value(call) in {"masked_fill", "masked_fill_"}:
        return _dtype_of(site, receiver(call))
    if site.is_torch_call(call, "full", "full_like") and dtype is not None:
        return site.code(dtype.value) if is_simple(dtype.value) else None
    if site.is_torch_call(call, "full"):
        return "torch.get_default_dtype()"
    if site.is_torch_call(call, "masked_fill", "full_like"):
        return _dtype_of(site, call.args[0].value)
    if site.is_torch_call(call, "where") and len(call.args) == 3:
        values = [argument.value for argument in call.args[1:]]
        finite = [value for value in values if not _is_minus_infinity(site, value)]
        return _dtype_of(site, finite[0]) if len(finite) == 1 else None
    return None


def _dtype_of(site: Site, value: cst.BaseExpression) -> str | None:
    return f"{site.code(value)}.dtype" if is_simple(value) else None


REWRITE = Rewrite("TPU404", (cst.Call, cst.UnaryOperation), rewrite)
