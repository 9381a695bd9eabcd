"""TPU308: `torch.compile`, which jax.jit replaces."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import REMOVED, Edit, Rewrite, replace_expression, replace_node
from tpuport.lint.fixes.site import Site

_DECORATORS: Final = frozenset(
    {"torch.compile", "torch.compiler.disable", "torch._dynamo.disable", "torch.jit.script"}
)


def rewrite(node: cst.BaseExpression, site: Site) -> Edit | None:
    """Remove the decorator, with or without arguments; replace `torch.compile(f, ...)` by `f`."""
    parent = site.parent(node)
    # The finding may be on the name alone.
    is_name = not isinstance(node, cst.Call)
    if is_name and isinstance(parent, cst.Call) and parent.func is node:
        node, parent = parent, site.parent(parent)
    name = site.function_name(node) or site.dotted_name(node)
    match parent, node:
        case cst.Decorator(), _:
            return replace_node(parent, REMOVED) if name in _DECORATORS else None
        case _, cst.Call(args=[cst.Arg(value=function, keyword=None, star=""), *_]) if (
            name == "torch.compile"
        ):
            return replace_expression(site, node, function)
    return None


REWRITE = Rewrite("TPU308", (cst.Call, cst.Attribute, cst.Name), rewrite)
