"""TPU304: `autocast` for CUDA, which has no effect anywhere else."""

import libcst as cst

from tpuport.lint.fixes.edits import REMOVED, Edit, Rewrite, replace_node, unwrap_with
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, is_name, keyword_argument, keyword_value


def rewrite(node: cst.Call, site: Site) -> Edit | None:
    """Replace `with torch.autocast("cuda", ...)` by its body; remove the decorator."""
    expect(_has_no_effect(node, site))
    parent = site.parent(node)
    match parent, site.parent(parent):
        case cst.Decorator(), _:
            return replace_node(parent, REMOVED)
        case cst.WithItem(asname=None), cst.With(asynchronous=None, items=[_]) as statement:
            return unwrap_with(statement)
        case cst.WithItem(asname=None) as item, cst.With(asynchronous=None) as statement:
            return _remove_item(statement, item)
    return None


def _remove_item(statement: cst.With, item: cst.WithItem) -> Edit:
    *_, before_last, last = statement.items
    if item is not last or isinstance(statement.lpar, cst.LeftParen):
        return replace_node(item, REMOVED)
    # Without parentheses the comma before the last item must go too.
    return Edit(((before_last, before_last.with_changes(comma=item.comma)), (item, REMOVED)))


def _has_no_effect(call: cst.Call, site: Site) -> bool:
    """Whether neither torch on a CPU nor torchax reacts to it: it is for CUDA, or switched off.

    torchax does not know autocast at all: under it the others have no effect either, but on a CPU they change results.
    """
    match site.function_name(call).split("."):
        case ["torch", "cuda", *_, "autocast"]:
            return True
        case ["torch", *_, "autocast"]:
            return is_name(keyword_value(call, "enabled"), "False") or _is_for_cuda(call)
    return False


def _is_for_cuda(call: cst.Call) -> bool:
    device = keyword_argument(call, "device_type")
    # `torch.autocast("cuda", ...)`: the device is the first argument.
    if device is None:
        device = next((argument for argument in call.args if argument.keyword is None), None)
    match device:
        case cst.Arg(value=cst.SimpleString(value="'cuda'" | '"cuda"')):
            return True
    return False


REWRITE = Rewrite("TPU304", (cst.Call,), rewrite)
