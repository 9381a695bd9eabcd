"""TPU311: pinned memory, which only speeds up copies to CUDA."""

import libcst as cst

from tpuport.lint.fixes.edits import (
    REMOVED,
    Edit,
    Rewrite,
    mark_unsafe,
    replace_expression,
    replace_node,
)
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, keyword_argument, nodes_of_kind, receiver


def rewrite(node: cst.CSTNode, site: Site) -> Edit | None:
    """Remove `.pin_memory()` and the arguments `pin_memory=True` and
    `non_blocking=True`.

    Code that asks whether memory is pinned keeps what pins it. Host code may still feed
    a GPU, which waits for memory that is not pinned.
    """
    call = site.innermost(node, cst.Call)
    expect(not _asks_for_pinned_memory(site.file.module))
    if site.method_of_value(call) == "pin_memory":
        return mark_unsafe(
            replace_expression(site, call, receiver(call)), site.is_host_code
        )
    # `pin_memory=flag` may be off, and then it is in nobody's way.
    for name in ("non_blocking", "pin_memory"):
        match keyword_argument(call, name):
            case cst.Arg(value=cst.Name(value="True")) as argument:
                return mark_unsafe(replace_node(argument, REMOVED), site.is_host_code)
    return None


def _asks_for_pinned_memory(module: cst.Module) -> bool:
    return any(
        node.attr.value == "is_pinned" for node in nodes_of_kind(module, cst.Attribute)
    )


REWRITE = Rewrite(
    "TPU311", (cst.Call, cst.Name, cst.Arg), rewrite, reads_whole_file=True
)
