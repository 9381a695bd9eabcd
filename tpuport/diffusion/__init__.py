"""Diffusion pipelines: the user's own, ported in place, and the denoising loop as a
single program.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value
