"""TPU211: prints of a traced tensor are removed."""

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, mark_unsafe, remove_line
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import called_name, contains, expect


def rewrite(node: cst.Expr, site: Site) -> Edit:
    """Remove a `print` on a line of its own: it shows no values during tracing, and
    does not run afterwards.
    """
    call = node.value
    expect(called_name(call) == "print" and not site.is_shadowed(call, "print"))
    # The arguments' evaluation may have an effect.
    expect(not contains(call, cst.NamedExpr, cst.Await))
    # Unsafe, because the text is gone from the eager run too.
    return mark_unsafe(remove_line(site, call))


REWRITE = Rewrite("TPU211", (cst.Expr,), rewrite, within=True)
