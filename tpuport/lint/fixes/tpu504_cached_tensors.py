"""TPU504: a cache over tensors is removed."""

from typing import Final

import libcst as cst

from tpuport.lint.fixes.edits import REMOVED, Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import expect, nodes_of_kind

_CACHES: Final = frozenset({"functools.lru_cache", "functools.cache"})
# Code that reads one of these needs the cache itself.
_CACHE_ATTRIBUTES: Final = frozenset(
    {"cache_clear", "cache_info", "cache_parameters", "__wrapped__"}
)


def rewrite(node: cst.CSTNode, site: Site) -> Edit | None:
    """Remove the decorator, unless the file uses the cache itself."""
    expect(not _uses_cache(site.file.module))
    for decorator in site.innermost(node, cst.FunctionDef).decorators:
        if site.called_or_named(decorator.decorator) in _CACHES:
            # Unsafe, because every call now computes the tensors.
            return replace_node(decorator, REMOVED, unsafe=True)
    return None


def _uses_cache(module: cst.Module) -> bool:
    attributes = {node.attr.value for node in nodes_of_kind(module, cst.Attribute)}
    return not attributes.isdisjoint(_CACHE_ATTRIBUTES)


REWRITE = Rewrite(
    "TPU504",
    (cst.FunctionDef, cst.Call, cst.Attribute, cst.Name),
    rewrite,
    reads_whole_file=True,
)
