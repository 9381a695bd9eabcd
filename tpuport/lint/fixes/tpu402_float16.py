"""TPU402: float16 as bfloat16."""

import libcst as cst

from tpuport.lint.fixes.place import Place, method
from tpuport.lint.fixes.rewrite import Edit, Rewrite

_HALF = frozenset({"torch.float16", "torch.half"})


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`.half()` as `.bfloat16()`, `torch.float16` as `torch.bfloat16`; results change in their last digits."""
    if (
        isinstance(node, cst.Call)
        and method(node) == "half"
        and not node.args
        and not place.dotted(node.func)
    ):
        assert isinstance(node.func, cst.Attribute)
        return Edit(((node.func.attr, cst.Name("bfloat16")),), unsafe=True)
    given = [arg.value for arg in node.args] if isinstance(node, cst.Call) else [node]
    constant = next((value for value in given if place.dotted(value) in _HALF), None)
    torch = place.torch(constant) if constant is not None else None
    if constant is None or torch is None:
        return None
    allowed = cst.Arg | cst.Assign | cst.AnnAssign | cst.IfExp | cst.Param | cst.Return
    if not isinstance(place.parent(constant), allowed):
        return None
    return Edit(((constant, place.expression(f"{torch[0]}.bfloat16")),), True, torch[1])


REWRITE = Rewrite("TPU402", (cst.Attribute, cst.Name, cst.Call), rewrite)
