"""TPU308: `torch.compile`, whose place jax.jit takes."""

import libcst as cst

from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import REMOVED, Edit, Rewrite
from tpuport.lint.fixes.statements import replaced

_DECORATORS = frozenset(
    {"torch.compile", "torch.compiler.disable", "torch._dynamo.disable", "torch.jit.script"}
)


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """The decorator goes, with or without arguments; `torch.compile(f, ...)` gives way to `f`."""
    call = node if isinstance(node, cst.Call) else None
    above = place.parent(node)
    if call is None and isinstance(above, cst.Call) and above.func is node:
        call, above = above, place.parent(above)
    name = place.dotted(call.func if call else node)
    if isinstance(above, cst.Decorator):
        return Edit(((above, REMOVED),)) if name in _DECORATORS else None
    first = call.args[0] if call is not None and call.args else None
    if call is None or first is None or name != "torch.compile" or first.keyword or first.star:
        return None
    return replaced(place, call, first.value)


REWRITE = Rewrite("TPU308", (cst.Call, cst.Attribute, cst.Name), rewrite)
