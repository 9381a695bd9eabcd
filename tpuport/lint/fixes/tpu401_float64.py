"""TPU401: float64, which torchax computes in float32 whatever the code says."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import require

_DOUBLE: Final = frozenset({"torch.float64", "torch.double"})


def rewrite(node: cst.BaseExpression, site: Site) -> Edit | None:
    """`.double()` as `.float()`, and `torch.float64` as `torch.float32`.

    Unsafe: eager torch computes in float64 what the code says, and the results have
    another dtype afterwards.
    """
    if site.method_of_value(node) == "double":
        return _rewrite_method(node)
    constant = require(find_constant(node, site, _DOUBLE))
    torch = site.torch_name(node)
    match site.parent(constant):
        case (
            cst.Arg()
            | cst.Assign()
            | cst.AnnAssign()
            | cst.IfExp()
            | cst.Param()
            | cst.Return()
        ):
            new = site.expression(f"{torch.name}.float32")
            return replace_node(constant, new, unsafe=True, imports=torch.imports)
        case _:  # in a comparison or a table of dtypes it means float64
            return None


def _rewrite_method(node: cst.BaseExpression) -> Edit | None:
    match node:
        case cst.Call(func=cst.Attribute(attr=method), args=[]):
            return replace_node(method, cst.Name("float"), unsafe=True)
    return None


def find_constant(
    node: cst.BaseExpression, site: Site, names: frozenset[str]
) -> cst.BaseExpression | None:
    """The dtype that a finding is about: the node itself, or an argument of the call
    that it is.
    """
    candidates = [node]
    if isinstance(node, cst.Call):
        candidates = [argument.value for argument in node.args]
    return next(
        (value for value in candidates if site.dotted_name(value) in names), None
    )


REWRITE = Rewrite("TPU401", (cst.Attribute, cst.Name, cst.Call), rewrite)
