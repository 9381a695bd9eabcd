"""TPU404: minus infinity as the lowest finite number."""

from typing import Any, Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    CannotRewriteError,
    called_name,
    expect,
    is_simple,
    keyword_value,
    nodes_of_kind,
    receiver,
    require,
)

_INFINITIES: Final = frozenset({"math.inf", "torch.inf", "numpy.inf"})


def rewrite(node: Any, site: Site) -> Edit:
    """In `x.masked_fill(mask, -inf)`, `torch.where(mask, x, -inf)` and
    `torch.full(size, -inf, dtype=...)`.
    """
    call = node
    # The finding may be on the call or on the number, which may be a call of `float`.
    if isinstance(node, cst.UnaryOperation) or _is_minus_infinity(site, node):
        call = require(site.argument_of(node))
    infinities = [
        argument.value
        for argument in call.args
        if _is_minus_infinity(site, argument.value)
    ]
    # With two, every entry is infinite, and the dtype of neither is known.
    expect(len(infinities) == 1)
    torch = site.torch_name(call)
    dtype = _dtype_text(site, call).replace("torch.", f"{torch.name}.")
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
    match nodes_of_kind(node, cst.SimpleString):
        case [string]:
            return str(string.evaluated_value).strip().lower()
    return ""


def _dtype_text(site: Site, call: cst.Call) -> str:
    """Text for the dtype of the tensor that is filled."""
    if site.method_of_value(call) in {"masked_fill", "masked_fill_"}:
        return _dtype_of(site, receiver(call))
    dtype = keyword_value(call, "dtype")
    match site.torch_function(call), call.args:
        case "full" | "full_like", _ if dtype is not None:
            expect(is_simple(dtype))
            return site.code(dtype)
        case "full", _:
            return "torch.get_default_dtype()"
        case "masked_fill" | "full_like", [tensor, *_]:
            return _dtype_of(site, tensor.value)
        case "where", [_, first, second]:
            # The infinity has the dtype of the other branch.
            branch = second if _is_minus_infinity(site, first.value) else first
            return _dtype_of(site, branch.value)
    raise CannotRewriteError


def _dtype_of(site: Site, value: cst.BaseExpression) -> str:
    expect(is_simple(value))
    return f"{site.code(value)}.dtype"


REWRITE = Rewrite("TPU404", (cst.Call, cst.UnaryOperation), rewrite)
