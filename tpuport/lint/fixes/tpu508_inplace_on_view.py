"""TPU508: an in-place operation on a part of a tensor, as an assignment to that part."""

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, is_number, is_simple, require


def rewrite(node: cst.Call, site: Site) -> Edit | None:
    """`x[0].zero_()` as `x[0] = 0` and `x[:, 1].fill_(v)` as `x[:, 1] = v`.

    With numbers and slices only: an index by a tensor copies, and in torch too the write to the copy is lost.
    """
    # Other in-place methods read what they overwrite.
    match node:
        case cst.Call(func=cst.Attribute(value=view, attr=cst.Name(value="zero_")), args=[]):
            value = "0"
        case cst.Call(
            func=cst.Attribute(value=view, attr=cst.Name(value="fill_")), args=[cst.Arg(value=fill, star="")]
        ):
            value = site.code(fill)
        case _:
            return None
    line = require(site.statement_line(node))
    expect(site.is_statement(node) and _is_view(view))
    return replace_node(line, site.statement(f"{site.code(view)} = {value}", line))


def _is_view(node: cst.BaseExpression) -> bool:
    """Whether the node indexes a simple name by numbers and slices."""
    if not isinstance(node, cst.Subscript) or not is_simple(node.value):
        return False
    indices = [element.slice.value for element in node.slice if isinstance(element.slice, cst.Index)]
    return all(isinstance(index, cst.Ellipsis) or is_number(index) for index in indices)


REWRITE = Rewrite("TPU508", (cst.Call,), rewrite)
