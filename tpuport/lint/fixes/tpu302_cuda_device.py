"""TPU302: "cuda" as a device."""

import libcst as cst

from tpuport.lint.fixes.devices import FACTORIES, device_here
from tpuport.lint.fixes.place import Place, method, receiver
from tpuport.lint.fixes.rewrite import REMOVED, Edit, Rewrite
from tpuport.lint.fixes.statements import replaced
from tpuport.lint.fixes.tpu301_cuda_call import moved

# What only says how the move is made, not what comes out of it.
_OF_THE_MOVE = frozenset({"non_blocking", "copy"})

_KINDS = ("zeros", "ones", "full", "empty")
# What these make is where their tensor is, unless told otherwise.
_FOLLOWING = frozenset({"new_tensor", *(f"new_{kind}" for kind in _KINDS)})
_LIKE = frozenset(f"torch.{kind}_like" for kind in (*_KINDS, "rand", "randn", "randint"))


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """The string as an argument of `.to`, of a function that makes tensors, or of `torch.load`."""
    argument = place.parent(node)
    call = place.parent(argument) if isinstance(argument, cst.Arg) else None
    if not isinstance(argument, cst.Arg) or not isinstance(call, cst.Call) or call.func is node:
        return None
    name = argument.keyword.value if argument.keyword else ""
    if method(call) == "to" and name in {"", "device"} and not place.dotted(call.func):
        edit = dropped_move(place, call, argument)
    elif name == "map_location" and place.dotted(call.func) == "torch.load":
        edit = Edit(((node, cst.SimpleString('"cpu"')),))
    else:
        edit = _made(place, call, argument, name)
    return edit and Edit(edit.changes, edit.unsafe or place.on_host)


def dropped_move(place: Place, call: cst.Call, argument: cst.Arg) -> Edit | None:
    """`x.to("cuda")` as `x`; `x.to("cuda", dtype)` as `x.to(dtype)`."""
    first = call.args[0]
    if argument.keyword is None and argument is not first:
        return None
    rest = [
        arg
        for arg in call.args
        if arg is not argument and not (arg.keyword and arg.keyword.value in _OF_THE_MOVE)
    ]
    if not rest:
        return moved(place, call)
    if any(arg.star or arg.value is None for arg in rest):
        return None
    positional = [arg for arg in rest if arg.keyword is None]
    if len(positional) > 1:
        return None  # what comes third by position is non_blocking
    arguments = ", ".join(place.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in rest)
    return replaced(place, call, place.expression(f"{place.operand(receiver(call))}.to({arguments})"))


def _made(place: Place, call: cst.Call, argument: cst.Arg, name: str) -> Edit | None:
    """`torch.zeros(..., device="cuda")`: beside an input in traced code, on the host where a module is built."""
    function = place.dotted(call.func)
    if name == "device" and (method(call) in _FOLLOWING if not function else function in _LIKE):
        return Edit(((argument, REMOVED),))
    if name != "device" or not function.startswith("torch.") or function.rpartition(".")[2] not in FACTORIES:
        return None
    if not place.traced:
        return Edit(((argument, REMOVED),))
    device = device_here(place, call)
    return device and Edit(((argument.value, place.expression(device)),))  # type: ignore[return-value]


REWRITE = Rewrite("TPU302", (cst.SimpleString,), rewrite)
