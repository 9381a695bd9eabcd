"""TPU211: a traced tensor is printed."""

import libcst as cst

from tpuport.lint.fixes.names import walk
from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import Edit, Rewrite
from tpuport.lint.fixes.statements import remove_line


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """A `print` on a line of its own goes. While tracing it shows no values, and afterwards it does not run."""
    assert isinstance(node, cst.Expr)
    call = node.value
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or call.func.value != "print":
        return None
    if place.shadowed(call, "print") or any(
        isinstance(part, cst.NamedExpr | cst.Await) for part in walk(call)
    ):
        return None
    edit = remove_line(place, call)
    return edit and Edit(edit.changes, unsafe=True)


REWRITE = Rewrite("TPU211", (cst.Expr,), rewrite, within=True)
