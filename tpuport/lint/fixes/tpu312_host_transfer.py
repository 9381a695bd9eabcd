"""TPU312: transfers of a traced tensor to the host."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_expression
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, keyword_argument, receiver
from tpuport.lint.fixes.tpu302_cuda_device import remove_device

# If Python values are made of the tensor at once, it is not the transfer that stops the
# trace.
_LEAVING_METHODS: Final = frozenset({"numpy", "tolist", "item", "detach"})


def rewrite(node: cst.Call | cst.SimpleString, site: Site) -> Edit | None:
    """`x.cpu()` as `x`, `x.to("cpu", ...)` without the device. Host code keeps them."""
    call = site.innermost(node, cst.Call)
    expect(not site.is_host_code)
    expect(not _is_leaving(site, call))
    match site.method_of_value(call):
        case "cpu":
            return replace_expression(site, call, receiver(call))
        case "to" if call.args:
            argument = keyword_argument(call, "device") or call.args[0]
            expect(_is_cpu(argument.value))
            return remove_device(site, call, argument)
    return None


def _is_cpu(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and node.evaluated_value in {
        "cpu",
        "cpu:0",
    }


def _is_leaving(site: Site, call: cst.Call) -> bool:
    match site.parent(call):
        case cst.Attribute(attr=cst.Name(value=method)):
            return method in _LEAVING_METHODS
    return False


REWRITE = Rewrite("TPU312", (cst.Call, cst.SimpleString), rewrite)
