"""TPU308: `torch.compile`, which jax.jit replaces."""

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
from tpuport.lint.fixes.syntax import expect

_DECORATORS: Final = frozenset(
    {
        "torch.compile",
        "torch.compiler.disable",
        "torch._dynamo.disable",
        "torch.jit.script",
    }
)


def rewrite(node: cst.BaseExpression, site: Site) -> Edit | None:
    """Remove the decorator, with or without arguments; replace `torch.compile(f, ...)`
    by `f`.

    Unsafe: on the host torch's compiler works, and rounds fused operations in its own
    way.
    """
    # The finding may be on the name alone.
    match site.parent(node):
        case cst.Call(func=name) as call if name is node:
            node = call
    decorator = site.parent(node)
    if isinstance(decorator, cst.Decorator):
        expect(site.called_or_named(node) in _DECORATORS)
        return replace_node(decorator, REMOVED, unsafe=True)
    match node:
        case cst.Call(args=[cst.Arg(value=function, keyword=None, star=""), *_]):
            expect(site.function_name(node) == "torch.compile")
            return mark_unsafe(replace_expression(site, node, function))
    return None


REWRITE = Rewrite("TPU308", (cst.Call, cst.Attribute, cst.Name), rewrite)
