"""TPU302: "cuda" as a device."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import (
    REMOVED,
    Edit,
    Rewrite,
    mark_unsafe,
    replace_expression,
    replace_node,
)
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import receiver
from tpuport.lint.fixes.tensors import FACTORIES, device_of_input
from tpuport.lint.fixes.tpu301_cuda_call import remove_move

# Arguments that say how a tensor is moved, and do not change the result.
_MOVE_OPTIONS: Final = frozenset({"non_blocking", "copy"})

_KINDS: Final = ("zeros", "ones", "full", "empty")
# Their result is on the device of their tensor unless they are passed another one.
_NEW_METHODS: Final = frozenset({"new_tensor", *(f"new_{kind}" for kind in _KINDS)})
_LIKE_FUNCTIONS: Final = frozenset(f"torch.{kind}_like" for kind in (*_KINDS, "rand", "randn", "randint"))


def rewrite(node: cst.SimpleString, site: Site) -> Edit | None:
    """The string as an argument of `.to`, of a function that creates tensors, or of `torch.load`."""
    argument = site.parent(node)
    call = site.argument_of(node)
    if call is None or not isinstance(argument, cst.Arg):
        return None
    keyword = argument.keyword.value if argument.keyword else ""
    if keyword in {"", "device"} and site.method_of_value(call) == "to":
        edit = remove_device(site, call, argument)
    elif keyword == "map_location" and site.function_name(call) == "torch.load":
        edit = replace_node(node, cst.SimpleString('"cpu"'))
    elif keyword == "device":
        edit = _rewrite_creation(site, call, argument)
    else:
        return None
    return mark_unsafe(edit, site.is_host_code)


def remove_device(site: Site, call: cst.Call, device: cst.Arg) -> Edit | None:
    """`x.to("cuda")` as `x`; `x.to("cuda", dtype)` as `x.to(dtype)`.

    Args:
        site: the finding.
        call: a call of `.to`.
        device: its argument that is the device.
    """
    if device.keyword is None and device is not call.args[0]:
        return None
    others = [argument for argument in call.args if argument is not device and not _is_move_option(argument)]
    if not others:
        return remove_move(site, call)
    # The third positional argument is non_blocking.
    positional_count = sum(argument.keyword is None for argument in others)
    if positional_count > 1 or any(argument.star for argument in others):
        return None
    texts = [site.code(argument.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for argument in others]
    text = f"{site.operand(receiver(call))}.to({', '.join(texts)})"
    return replace_expression(site, call, site.expression(text))


def _is_move_option(argument: cst.Arg) -> bool:
    return argument.keyword is not None and argument.keyword.value in _MOVE_OPTIONS


def _rewrite_creation(site: Site, call: cst.Call, device: cst.Arg) -> Edit | None:
    """`torch.zeros(..., device="cuda")`: on an input's device in traced code, on the host where a module is built."""
    function = site.function_name(call)
    if site.method_of_value(call) in _NEW_METHODS or function in _LIKE_FUNCTIONS:
        return replace_node(device, REMOVED)
    module, _, name = function.partition(".")
    if module != "torch" or name.rpartition(".")[2] not in FACTORIES:
        return None
    if not site.is_traced:
        return replace_node(device, REMOVED)
    text = device_of_input(site, call)
    return None if text is None else replace_node(device.value, site.expression(text))


REWRITE = Rewrite("TPU302", (cst.SimpleString,), rewrite)
