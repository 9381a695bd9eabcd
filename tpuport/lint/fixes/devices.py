"""Where the tensors of a function are, in the function's own words."""

import libcst as cst

from tpuport.lint.fixes.names import own_nodes, parameters
from tpuport.lint.fixes.place import Place, keyword, method

_TENSORS = ("Tensor", "FloatTensor", "LongTensor", "IntTensor", "BoolTensor")
_SAID_BY = frozenset({"shape", "dtype", "device", "ndim"})


def device_here(place: Place, node: cst.CSTNode) -> str | None:
    """Text for the device of a tensor that the function surely has: `x.device` of a parameter; None without one."""
    function = place.function(node)
    if not isinstance(function, cst.FunctionDef):
        return None
    seen = _treated_as_tensors(function)
    for parameter in parameters(function):
        name = parameter.name.value
        if name in {"self", "cls"} or parameter.star in {"*", "**"} or parameter.default is not None:
            continue
        if _is_tensor(place, parameter) or (parameter.annotation is None and name in seen):
            return f"{name}.device"
    return _of_first_input(function)


def _of_first_input(function: cst.FunctionDef) -> str | None:
    """The first input of a `forward` that computes with it is a tensor."""
    given = [
        p for p in parameters(function)[1:2] if p.annotation is None and p.default is None and not p.star
    ]
    if function.name.value != "forward" or not given:
        return None
    name = given[0].name.value
    computes = any(
        isinstance(side, cst.Name) and side.value == name
        for node in own_nodes(function)
        if isinstance(node, cst.BinaryOperation)
        for side in (node.left, node.right)
    )
    return f"{name}.device" if computes else None


def _is_tensor(place: Place, parameter: cst.Param) -> bool:
    if parameter.annotation is None:
        return False
    text = place.code(parameter.annotation.annotation).strip("\"'")
    return text.rpartition(".")[2] in _TENSORS


def _treated_as_tensors(function: cst.FunctionDef) -> set[str]:
    """Names whose `.shape`, `.dtype`, `.device` or `.ndim` the function asks for."""
    return {
        node.value.value
        for node in own_nodes(function)
        if isinstance(node, cst.Attribute)
        and isinstance(node.value, cst.Name)
        and node.attr.value in _SAID_BY
    }


def made_on_host(place: Place, node: cst.CSTNode) -> bool:
    """Whether the expression is made by torch without a device or for the CPU, so that it is on the host."""
    while isinstance(node, cst.Call) and method(node) and not place.dotted(node.func):
        node = node.func.value  # type: ignore[union-attr]
    if not isinstance(node, cst.Call) or not place.dotted(node.func).startswith("torch."):
        return False
    last = place.dotted(node.func).rpartition(".")[2]
    device = keyword(node, "device")
    on_host = device is None or place.code(device.value).strip("\"'") == "cpu"
    return last in FACTORIES and on_host


FACTORIES = frozenset(
    "arange as_tensor empty eye full linspace logspace ones rand randint randn randperm tensor zeros Generator "
    "tril_indices triu_indices hann_window hamming_window from_numpy".split()
)
