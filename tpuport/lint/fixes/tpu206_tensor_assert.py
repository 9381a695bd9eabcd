"""TPU206: assertions about tensors go."""

import libcst as cst

from tpuport.lint.fixes.names import walk
from tpuport.lint.fixes.place import Place, method
from tpuport.lint.fixes.rewrite import Edit, Rewrite
from tpuport.lint.fixes.statements import remove_line

_EFFECTS = (cst.NamedExpr, cst.Await, cst.Yield)
_MUTATORS = frozenset(
    "append extend insert pop popitem remove add update setdefault clear write send __setitem__".split()
)


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """The whole assertion, unless evaluating it does something."""
    assert isinstance(node, cst.Assert)
    if any(_has_effect(part) for part in walk(node)):
        return None
    return remove_line(place, node)


def _has_effect(node: cst.CSTNode) -> bool:
    if isinstance(node, _EFFECTS):
        return True
    name = method(node)
    return (
        name in _MUTATORS
        or (name.endswith("_") and not name.endswith("__"))
        or (isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "next")
    )


REWRITE = Rewrite("TPU206", (cst.Assert,), rewrite, within=True)
