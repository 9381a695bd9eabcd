"""Code written for a GPU, imported and run without one: `tpuport.gpu_shim`.

Names resolve on first use; importing the room does not import torch.
"""

from typing import TYPE_CHECKING, Any

from tpuport.base.lazy_names import lazy_name

if TYPE_CHECKING:
    from tpuport.gpu.cuda_shim import GpuShim as GpuShim
    from tpuport.gpu.cuda_shim import gpu_shim as gpu_shim
    from tpuport.gpu.cuda_shim import whitelist as whitelist

_PUBLIC = {"GpuShim": "cuda_shim", "gpu_shim": "cuda_shim", "whitelist": "cuda_shim"}

__all__ = ["GpuShim", "gpu_shim", "whitelist"]


def __getattr__(name: str) -> Any:
    return lazy_name(__name__, _PUBLIC, name)
