"""TPU311: pinned memory, which only CUDA copies from faster."""

import libcst as cst

from tpuport.lint.fixes.place import Place, keyword, method, receiver
from tpuport.lint.fixes.rewrite import REMOVED, Edit, Rewrite
from tpuport.lint.fixes.statements import replaced


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`.pin_memory()` goes; so do the arguments `pin_memory=True` and `non_blocking=True`."""
    call = node if isinstance(node, cst.Call) else place.enclosing(node, cst.Call)
    if not isinstance(call, cst.Call):
        return None
    if method(call) == "pin_memory" and not place.dotted(call.func):
        return replaced(place, call, receiver(call))
    for name in ("non_blocking", "pin_memory"):
        argument = keyword(call, name)
        if argument is not None and isinstance(argument.value, cst.Name) and argument.value.value == "True":
            return Edit(((argument, REMOVED),))
    return None


REWRITE = Rewrite("TPU311", (cst.Call, cst.Name, cst.Arg), rewrite)
