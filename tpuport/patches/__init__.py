"""Functions of known libraries that cannot be traced, or not well, and what stands in
for them.

Names resolve on first use; none of them imports torch.
"""

from typing import TYPE_CHECKING, Any

from tpuport.lazy_names import lazy_name

if TYPE_CHECKING:
    from tpuport.patches.digests import digest as digest
    from tpuport.patches.patch import Patch as Patch
    from tpuport.patches.registry import before_tracing as before_tracing
    from tpuport.patches.registry import original as original
    from tpuport.patches.registry import register as register
    from tpuport.patches.registry import statuses as statuses

_PUBLIC = {
    "Patch": "patch",
    "before_tracing": "registry",
    "digest": "digests",
    "original": "registry",
    "register": "registry",
    "statuses": "registry",
}

__all__ = ["Patch", "before_tracing", "digest", "original", "register", "statuses"]


def __getattr__(name: str) -> Any:
    return lazy_name(__name__, _PUBLIC, name)
