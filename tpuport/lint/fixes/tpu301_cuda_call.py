"""TPU301: `x.cuda()` goes."""

import libcst as cst

from tpuport.lint.fixes.devices import device_here, made_on_host
from tpuport.lint.fixes.place import Place, method, receiver
from tpuport.lint.fixes.rewrite import Edit, Rewrite
from tpuport.lint.fixes.statements import replaced


def moved(place: Place, call: cst.Call) -> Edit | None:
    """The call gives way to what it moves; a tensor that traced code makes on the host goes where an input is."""
    what = receiver(call)
    if not (place.traced and made_on_host(place, what)):
        return replaced(place, call, what)
    device = device_here(place, call)
    return replaced(place, call, device and place.expression(f"{place.operand(what)}.to({device})"))  # type: ignore[arg-type]


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`x.cuda(...)` with any arguments."""
    assert isinstance(node, cst.Call)
    if method(node) != "cuda" or place.dotted(node.func):
        return None
    edit = moved(place, node)
    return edit and Edit(edit.changes, unsafe=place.on_host)


REWRITE = Rewrite("TPU301", (cst.Call,), rewrite)
