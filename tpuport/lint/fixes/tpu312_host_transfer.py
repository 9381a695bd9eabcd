"""TPU312: a traced tensor is moved to the host."""

import libcst as cst

from tpuport.lint.fixes.place import Place, keyword, method, receiver
from tpuport.lint.fixes.rewrite import Edit, Rewrite
from tpuport.lint.fixes.statements import replaced
from tpuport.lint.fixes.tpu302_cuda_device import dropped_move


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`x.cpu()` as `x`, `x.to("cpu", ...)` without the device. Host code keeps them."""
    call = node if isinstance(node, cst.Call) else place.enclosing(node, cst.Call)
    if place.on_host or not isinstance(call, cst.Call) or place.dotted(call.func):
        return None
    if _goes_to_numpy(place, call):
        return None
    if method(call) == "cpu":
        return replaced(place, call, receiver(call))
    if method(call) != "to" or not call.args:
        return None
    argument = keyword(call, "device") or call.args[0]
    text = argument.value.evaluated_value if isinstance(argument.value, cst.SimpleString) else None
    return dropped_move(place, call, argument) if text in {"cpu", "cpu:0"} else None


def _goes_to_numpy(place: Place, call: cst.Call) -> bool:
    """Whether Python's own values are made of it at once: then the transfer is not what stops the trace."""
    above = place.parent(call)
    return isinstance(above, cst.Attribute) and above.attr.value in {"numpy", "tolist", "item", "detach"}


REWRITE = Rewrite("TPU312", (cst.Call, cst.SimpleString), rewrite)
