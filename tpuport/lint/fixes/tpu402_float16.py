"""TPU402: float16 as bfloat16."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, require
from tpuport.lint.fixes.tpu401_float64 import find_constant

_HALF: Final = frozenset({"torch.float16", "torch.half"})
# In a comparison or a table of dtypes, float16 means float16.
_ALLOWED_PARENTS: Final = (
    cst.Arg,
    cst.Assign,
    cst.AnnAssign,
    cst.IfExp,
    cst.Param,
    cst.Return,
)


def rewrite(node: cst.BaseExpression, site: Site) -> Edit:
    """`.half()` as `.bfloat16()`, `torch.float16` as `torch.bfloat16`; results change
    in their last digits.
    """
    match node:
        case cst.Call(func=cst.Attribute(attr=method), args=[]) if (
            site.method_of_value(node) == "half"
        ):
            return replace_node(method, cst.Name("bfloat16"), unsafe=True)
    constant = require(find_constant(node, site, _HALF))
    torch = site.torch_name(node)
    expect(isinstance(site.parent(constant), _ALLOWED_PARENTS))
    new = site.expression(f"{torch.name}.bfloat16")
    return replace_node(constant, new, unsafe=True, imports=torch.imports)


REWRITE = Rewrite("TPU402", (cst.Attribute, cst.Name, cst.Call), rewrite)
