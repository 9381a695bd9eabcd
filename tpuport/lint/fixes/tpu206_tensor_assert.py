"""TPU206: assertions about tensors are removed."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, mark_unsafe, remove_line
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import called_name, expect, method_name, walk

_MUTATING_METHODS: Final = frozenset(
    "append extend insert pop popitem remove add update setdefault clear write send __setitem__".split()
)


def rewrite(node: cst.Assert, site: Site) -> Edit:
    """Remove the whole assertion, unless its evaluation has an effect.

    Unsafe: the assertion may be what refuses wrong inputs, and eager code loses it too.
    """
    expect(not any(map(_has_effect, walk(node))))
    return mark_unsafe(remove_line(site, node))


def _has_effect(node: cst.CSTNode) -> bool:
    if (
        isinstance(node, cst.NamedExpr | cst.Await | cst.Yield)
        or called_name(node) == "next"
    ):
        return True
    method = method_name(node)
    # torch's in-place methods end with one underscore.
    is_in_place = method.endswith("_") and not method.endswith("__")
    return is_in_place or method in _MUTATING_METHODS


REWRITE = Rewrite("TPU206", (cst.Assert,), rewrite, within=True)
