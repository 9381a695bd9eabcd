"""Functions of known libraries that cannot be traced, or not well, and what stands in
for them.

Names resolve on first use; none of them imports torch.
"""

from typing import TYPE_CHECKING, Any

from tpuport.base.lazy_names import lazy_name

if TYPE_CHECKING:
    from tpuport.patches.digests import digest as digest
    from tpuport.patches.patch import Patch as Patch
    from tpuport.patches.registry import register as register
    from tpuport.patches.registry import statuses as statuses
    from tpuport.patches.replaced import original as original
    from tpuport.patches.switch import before_tracing as before_tracing
    from tpuport.patches.switch import with_original as with_original

_PUBLIC = {
    "Patch": "patch",
    "before_tracing": "switch",
    "digest": "digests",
    "original": "replaced",
    "register": "registry",
    "statuses": "registry",
    "with_original": "switch",
}

__all__ = [
    "Patch",
    "before_tracing",
    "digest",
    "original",
    "register",
    "statuses",
    "with_original",
]


def __getattr__(name: str) -> Any:
    return lazy_name(__name__, _PUBLIC, name)
