"""TPU504: a cache over tensors goes."""

import libcst as cst

from tpuport.lint.fixes.names import walk
from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import REMOVED, Edit, Rewrite

_CACHES = frozenset({"functools.lru_cache", "functools.cache"})
_ASKED = frozenset({"cache_clear", "cache_info", "cache_parameters", "__wrapped__"})


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """The decorator goes, unless the file speaks to the cache itself."""
    function = node if isinstance(node, cst.FunctionDef) else place.enclosing(node, cst.FunctionDef)
    if not isinstance(function, cst.FunctionDef):
        return None
    for decorator in function.decorators:
        inner = decorator.decorator
        if place.dotted(inner.func if isinstance(inner, cst.Call) else inner) in _CACHES:
            if _asked_for(place.file.module):
                return None
            return Edit(((decorator, REMOVED),), unsafe=True)
    return None


def _asked_for(module: cst.Module) -> bool:
    return any(isinstance(node, cst.Attribute) and node.attr.value in _ASKED for node in walk(module))


REWRITE = Rewrite("TPU504", (cst.FunctionDef, cst.Call, cst.Attribute, cst.Name), rewrite)
