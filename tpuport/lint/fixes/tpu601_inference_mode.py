"""TPU601: `inference_mode` as `no_grad`."""

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect


def rewrite(node: cst.BaseExpression, site: Site) -> Edit | None:
    """`torch.inference_mode()` without arguments, in a `with` or as a decorator."""
    # The finding may be on the name alone.
    call = node if isinstance(node, cst.Call) else site.parent(node)
    # Elsewhere, or as `inference_mode(flag)`, it need not be on.
    match call:
        case cst.Call(func=name, args=[]) if isinstance(
            site.parent(call), cst.Decorator | cst.WithItem
        ):
            pass
        case cst.Decorator():
            name = node
        case _:
            return None
    expect(site.dotted_name(name) == "torch.inference_mode")
    torch = site.torch_name(node)
    return replace_node(
        name, site.expression(f"{torch.name}.no_grad"), imports=torch.imports
    )


REWRITE = Rewrite("TPU601", (cst.Call, cst.Attribute, cst.Name), rewrite)
