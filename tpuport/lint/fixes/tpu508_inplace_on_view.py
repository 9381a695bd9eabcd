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
    # The result of an in-place method may be used; an assignment has none.
    line = require(site.statement_line(node))
    expect(site.is_statement(node))
    expect(_is_view(view))
    return replace_node(line, site.statement(f"{site.code(view)} = {value}", line))


def _is_view(node: cst.BaseExpression) -> bool:
    """Whether the node indexes a simple name by numbers and slices."""
    match node:
        case cst.Subscript(value=base, slice=elements) if is_simple(base):
            return all(_is_basic_index(element.slice) for element in elements)
    return False


def _is_basic_index(part: cst.BaseSlice) -> bool:
    """Whether it is a slice, `...` or a number."""
    match part:
        case cst.Index(value=cst.Ellipsis()):
            return True
        case cst.Index(value=index):
            return is_number(index)
    return isinstance(part, cst.Slice)


REWRITE = Rewrite("TPU508", (cst.Call,), rewrite)
