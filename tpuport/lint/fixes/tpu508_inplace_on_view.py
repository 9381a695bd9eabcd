"""TPU508: an in-place operation on a part of a tensor, as an assignment to that part."""

import libcst as cst

from tpuport.lint.fixes.masks import is_number
from tpuport.lint.fixes.place import Place, is_simple, method, receiver
from tpuport.lint.fixes.rewrite import Edit, Rewrite


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`x[0].zero_()` as `x[0] = 0` and `x[:, 1].fill_(v)` as `x[:, 1] = v`.

    With numbers and slices only: an index that is a tensor makes a copy, and the write to it is lost in torch too.
    """
    assert isinstance(node, cst.Call)
    line = place.line(node)
    name = method(node)
    if line is None or not place.is_statement(node) or name not in {"zero_", "fill_"}:
        return None
    part = receiver(node)
    if not isinstance(part, cst.Subscript) or not is_simple(part.value) or not _is_static(part):
        return None
    values = [arg for arg in node.args if not arg.star]
    if len(values) != len(node.args) or len(values) != (name == "fill_"):
        return None
    value = place.code(values[0].value) if values else "0"
    return Edit(((line, place.statement(f"{place.code(part)} = {value}", line)),))


def _is_static(part: cst.Subscript) -> bool:
    indices = [element.slice.value for element in part.slice if isinstance(element.slice, cst.Index)]
    return all(is_number(index) or isinstance(index, cst.Ellipsis) for index in indices)


REWRITE = Rewrite("TPU508", (cst.Call,), rewrite)
