"""Diffusion pipelines: the user's own, ported in place, and the denoising loop as a
single program.
"""

from typing import TYPE_CHECKING, Any

from tpuport.base.lazy_names import lazy_name

if TYPE_CHECKING:
    from tpuport.diffusion.denoising import denoise
    from tpuport.diffusion.pipeline import port_pipeline, restore, take_back

_PUBLIC = {
    "denoise": "denoising",
    "port_pipeline": "pipeline",
    "restore": "pipeline",
    "take_back": "pipeline",
}

__all__ = ["denoise", "port_pipeline", "restore", "take_back"]


def __getattr__(name: str) -> Any:
    return lazy_name(__name__, _PUBLIC, name)
