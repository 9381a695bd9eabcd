"""TPU601: `inference_mode` as `no_grad`."""

import libcst as cst

from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import Edit, Rewrite


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`torch.inference_mode()` without arguments, in a `with` or as a decorator."""
    call = node if isinstance(node, cst.Call) else place.parent(node)
    name = call.func if isinstance(call, cst.Call) else node
    if place.dotted(name) != "torch.inference_mode":
        return None
    if isinstance(call, cst.Call):
        if call.args or not isinstance(place.parent(call), cst.Decorator | cst.WithItem):
            return None
    elif not isinstance(place.parent(node), cst.Decorator):
        return None
    torch = place.torch(node)
    return torch and Edit(((name, place.expression(f"{torch[0]}.no_grad")),), imports=torch[1])  # type: ignore[return-value]


REWRITE = Rewrite("TPU601", (cst.Call, cst.Attribute, cst.Name), rewrite)
