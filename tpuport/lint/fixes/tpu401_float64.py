"""TPU401: float64, which torchax computes in float32 whatever the text says."""

import libcst as cst

from tpuport.lint.fixes.devices import made_on_host
from tpuport.lint.fixes.names import parameters
from tpuport.lint.fixes.place import Place, keyword, method, receiver
from tpuport.lint.fixes.rewrite import Edit, New, Rewrite

_DOUBLE = frozenset({"torch.float64", "torch.double"})


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`.double()` as `.float()`, and `torch.float64` as `torch.float32`.

    The same numbers come out where torchax computes: of what was moved or made on the device. What torch computes
    on the host (tables that a module builds) has float64's digits, and loses them.
    """
    if isinstance(node, cst.Call) and method(node) == "double" and not place.dotted(node.func):
        if node.args:
            return None
        assert isinstance(node.func, cst.Attribute)
        changes: tuple[tuple[cst.CSTNode, New], ...] = ((node.func.attr, cst.Name("float")),)
        return Edit(changes, unsafe=not _on_device(place, receiver(node)))
    constant = _constant(node, place)
    torch = place.torch(constant) if constant is not None else None
    if constant is None or torch is None:
        return None
    new = place.expression(f"{torch[0]}.float32")
    above = place.parent(constant)
    if isinstance(above, cst.Arg):
        call = place.parent(above)
        assert isinstance(call, cst.Call | cst.ClassDef)
        safe = isinstance(call, cst.Call) and _computed_on_device(place, call)
        return Edit(((constant, new),), not safe, torch[1])
    if isinstance(above, cst.Assign | cst.AnnAssign | cst.IfExp | cst.Param | cst.Return):
        return Edit(((constant, new),), True, torch[1])
    return None  # a comparison, a table of dtypes: there it is what it says


def _constant(node: cst.CSTNode, place: Place) -> cst.CSTNode | None:
    """The dtype that a finding on it, or on the call it is an argument of, is about."""
    if place.dotted(node) in _DOUBLE:
        return node
    given = [arg.value for arg in node.args] if isinstance(node, cst.Call) else []
    return next((value for value in given if place.dotted(value) in _DOUBLE), None)


def _computed_on_device(place: Place, call: cst.Call) -> bool:
    if method(call) in {"to", "type"} and not place.dotted(call.func):
        return _on_device(place, receiver(call))
    device = keyword(call, "device")
    if not place.traced or device is None or not place.dotted(call.func).startswith("torch."):
        return False
    return _is_of_input(place, device.value)


def _is_of_input(place: Place, device: cst.BaseExpression) -> bool:
    """Whether it is `x.device` of a parameter x: any other may be the host."""
    if not isinstance(device, cst.Attribute) or not isinstance(device.value, cst.Name):
        return False
    function = place.function(device)
    named = {p.name.value for p in parameters(function)} if function is not None else set()
    return device.attr.value == "device" and device.value.value in named


def _on_device(place: Place, value: cst.BaseExpression) -> bool:
    return place.traced and not made_on_host(place, value)


REWRITE = Rewrite("TPU401", (cst.Attribute, cst.Name, cst.Call), rewrite)
