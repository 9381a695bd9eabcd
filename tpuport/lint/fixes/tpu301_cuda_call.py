"""TPU301: `x.cuda()` becomes `x`."""

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, mark_unsafe, replace_expression
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, receiver, require
from tpuport.lint.fixes.tensors import device_of_input, is_created_on_host


def remove_move(site: Site, call: cst.Call) -> Edit:
    """Replace a call that moves a tensor by the tensor.

    A tensor that traced code creates on the host moves to the device of an input
    instead.
    """
    tensor = receiver(call)
    if not site.is_traced or not is_created_on_host(site, tensor):
        return replace_expression(site, call, tensor)
    device = require(device_of_input(site, call))
    return replace_expression(
        site, call, site.expression(f"{site.operand(tensor)}.to({device})")
    )


def rewrite(node: cst.Call, site: Site) -> Edit:
    """`x.cuda(...)` with any arguments.

    Unsafe: on a GPU it is what brings the tensor there, beside others that are there
    already.
    """
    expect(site.method_of_value(node) == "cuda")
    return mark_unsafe(remove_move(site, node))


REWRITE = Rewrite("TPU301", (cst.Call,), rewrite)
