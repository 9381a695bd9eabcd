"""TPU311: pinned memory, which only speeds up copies to CUDA."""

import libcst as cst

from tpuport.lint.fixes.edits import REMOVED, Edit, Rewrite, replace_expression, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import keyword_argument, receiver


def rewrite(node: cst.CSTNode, site: Site) -> Edit | None:
    """Remove `.pin_memory()` and the arguments `pin_memory=True` and `non_blocking=True`."""
    call = site.innermost(node, cst.Call)
    if site.method_of_value(call) == "pin_memory":
        return replace_expression(site, call, receiver(call))
    # `pin_memory=flag` may be off, and then it is in nobody's way.
    for name in ("non_blocking", "pin_memory"):
        match keyword_argument(call, name):
            case cst.Arg(value=cst.Name(value="True")) as argument:
                return replace_node(argument, REMOVED)
    return None


REWRITE = Rewrite("TPU311", (cst.Call, cst.Name, cst.Arg), rewrite)
