"""TPU304: `autocast` for CUDA, which changes nothing anywhere else."""

import libcst as cst

from tpuport.lint.fixes.place import Place, keyword
from tpuport.lint.fixes.rewrite import REMOVED, Edit, Rewrite
from tpuport.lint.fixes.statements import unwrapped


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`with torch.autocast("cuda", ...)` gives way to its body; as a decorator it goes."""
    assert isinstance(node, cst.Call)
    above = place.parent(node)
    if not _does_nothing(node, place):
        return None
    if isinstance(above, cst.Decorator):
        return Edit(((above, REMOVED),))
    if not isinstance(above, cst.WithItem) or above.asname is not None:
        return None
    statement = place.parent(above)
    if not isinstance(statement, cst.With) or statement.asynchronous is not None:
        return None
    if len(statement.items) > 1:
        return _without_item(statement, above)
    return Edit(((statement, unwrapped(statement)),))


def _without_item(statement: cst.With, item: cst.WithItem) -> Edit:
    *_, before, last = statement.items
    if item is not last or isinstance(statement.lpar, cst.LeftParen):
        return Edit(((item, REMOVED),))
    return Edit(((before, before.with_changes(comma=item.comma)), (item, REMOVED)))


def _does_nothing(call: cst.Call, place: Place) -> bool:
    """Whether neither torch on a CPU nor torchax does anything for it: it is for CUDA, or switched off.

    torchax knows no autocast at all: under it every other one does nothing either, but changes results on a CPU.
    """
    name = place.dotted(call.func)
    if name.rpartition(".")[2] != "autocast" or not name.startswith("torch."):
        return False
    if name.startswith("torch.cuda.") or _is(keyword(call, "enabled"), "False"):
        return True
    device = keyword(call, "device_type") or next((arg for arg in call.args if not arg.keyword), None)
    return isinstance(getattr(device, "value", None), cst.SimpleString) and _is(device, "'cuda'", '"cuda"')


def _is(argument: cst.Arg | None, *texts: str) -> bool:
    return isinstance(getattr(argument, "value", None), cst.Name | cst.SimpleString) and (
        argument.value.value in texts  # type: ignore[union-attr]
    )


REWRITE = Rewrite("TPU304", (cst.Call,), rewrite)
