"""TPU401: float64, which torchax computes in float32 whatever the code says."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import is_name, keyword_value, parameter_names, receiver, require
from tpuport.lint.fixes.tensors import is_created_on_host

_DOUBLE: Final = frozenset({"torch.float64", "torch.double"})


def rewrite(node: cst.BaseExpression, site: Site) -> Edit | None:
    """`.double()` as `.float()`, and `torch.float64` as `torch.float32`.

    Results stay the same for what torchax computes: tensors that were moved to the device or created there. What
    torch computes on the host (tables that a module builds) has float64's digits, and loses them.
    """
    if site.method_of_value(node) == "double":
        return _rewrite_method(node, site)
    constant = require(find_constant(node, site, _DOUBLE))
    torch = site.torch_name(node)
    is_unsafe = True
    match site.parent(constant):
        case cst.Arg():
            call = site.argument_of(constant)
            is_unsafe = call is None or not _is_computed_on_device(site, call)
        case cst.Assign() | cst.AnnAssign() | cst.IfExp() | cst.Param() | cst.Return():
            pass
        case _:  # in a comparison or a table of dtypes it means float64
            return None
    new = site.expression(f"{torch.name}.float32")
    return replace_node(constant, new, unsafe=is_unsafe, imports=torch.imports)


def _rewrite_method(node: cst.BaseExpression, site: Site) -> Edit | None:
    match node:
        case cst.Call(func=cst.Attribute(value=tensor, attr=method), args=[]):
            return replace_node(method, cst.Name("float"), unsafe=not _is_on_device(site, tensor))
    return None


def find_constant(node: cst.BaseExpression, site: Site, names: frozenset[str]) -> cst.BaseExpression | None:
    """The dtype that a finding is about: the node itself, or an argument of the call that it is."""
    candidates = [node]
    if isinstance(node, cst.Call):
        candidates = [argument.value for argument in node.args]
    return next((value for value in candidates if site.dotted_name(value) in names), None)


def _is_computed_on_device(site: Site, call: cst.Call) -> bool:
    """Whether a call with this dtype converts or creates a tensor on the device."""
    if site.method_of_value(call) in {"to", "type"}:
        return _is_on_device(site, receiver(call))
    if not site.is_traced or not site.function_name(call).startswith("torch."):
        return False
    function = site.enclosing_function(call)
    match keyword_value(call, "device"):
        # `x.device` of a parameter x: any other device may be the host.
        case cst.Attribute(value=owner, attr=cst.Name(value="device")) if function is not None:
            return is_name(owner, *parameter_names(function))
    return False


def _is_on_device(site: Site, tensor: cst.BaseExpression) -> bool:
    return site.is_traced and not is_created_on_host(site, tensor)


REWRITE = Rewrite("TPU401", (cst.Attribute, cst.Name, cst.Call), rewrite)
