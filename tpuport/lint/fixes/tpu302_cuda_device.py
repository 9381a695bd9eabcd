"""TPU302: "cuda" as a device."""

import re
from typing import Any, Final

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
from tpuport.lint.fixes.syntax import expect, keyword_argument, receiver, require
from tpuport.lint.fixes.tensors import device_of_input, is_factory
from tpuport.lint.fixes.tpu301_cuda_call import remove_move

# Arguments that say how a tensor is moved, and do not change the result.
_MOVE_OPTIONS: Final = ("non_blocking", "copy")

_KINDS: Final = ("zeros", "ones", "full", "empty")
# Their result is on the device of their tensor unless they are passed another one.
_NEW_METHODS: Final = frozenset({"new_tensor", *(f"new_{kind}" for kind in _KINDS)})
# `torch.nn.Linear`, unlike `torch.nn.functional.linear`.
_MODULE: Final = re.compile(r"torch\.nn\.[A-Z]\w*")
_LIKE_FUNCTIONS: Final = frozenset(
    f"torch.{kind}_like" for kind in (*_KINDS, "rand", "randn", "randint")
)


def rewrite(node: cst.SimpleString, site: Site) -> Edit | None:
    """The string as an argument of `.to`, of a function that creates tensors, or of
    `torch.load`.

    Unsafe: on a GPU it is what brings the tensor there, beside others that are there
    already.
    """
    call = require(site.argument_of(node))
    argument: Any = site.parent(node)
    match argument.keyword, site.method_of_value(call), site.function_name(call):
        case None | cst.Name(value="device"), "to", _:
            edit = remove_device(site, call, argument)
        case cst.Name(value="map_location"), _, "torch.load":
            edit = replace_node(node, cst.SimpleString('"cpu"'))
        case cst.Name(value="device"), _, function:
            edit = _rewrite_creation(site, call, argument, function)
        case _:
            return None
    return mark_unsafe(edit)


def remove_device(site: Site, call: cst.Call, device: cst.Arg) -> Edit:
    """`x.to("cuda")` as `x`; `x.to("cuda", dtype)` as `x.to(dtype)`.

    Args:
        site: the finding.
        call: a call of `.to`.
        device: its argument that is the device.
    """
    expect(device.keyword is not None or device is call.args[0])
    options = [keyword_argument(call, name) for name in _MOVE_OPTIONS]
    others = [argument for argument in call.args if argument not in (device, *options)]
    if not others:
        return remove_move(site, call)
    # The third positional argument is non_blocking.
    expect(sum(argument.keyword is None for argument in others) <= 1)
    expect(not any(argument.star for argument in others))
    texts = [
        site.code(argument.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        for argument in others
    ]
    text = f"{site.operand(receiver(call))}.to({', '.join(texts)})"
    return replace_expression(site, call, site.expression(text))


def _rewrite_creation(
    site: Site, call: cst.Call, device: cst.Arg, function: str
) -> Edit:
    """`torch.zeros(..., device="cuda")`: on an input's device in traced code, on the
    host where a module is built.
    """
    if site.method_of_value(call) in _NEW_METHODS or function in _LIKE_FUNCTIONS:
        return replace_node(device, REMOVED)
    # torch's own modules have the argument too.
    expect(is_factory(function) or _MODULE.fullmatch(function))
    # Where a module is built, the host is the right place: `port` moves its tensors.
    if not site.is_traced:
        return replace_node(device, REMOVED)
    return replace_node(
        device.value, site.expression(require(device_of_input(site, call)))
    )


REWRITE = Rewrite("TPU302", (cst.SimpleString,), rewrite)
