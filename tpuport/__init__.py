"""Port PyTorch models written for GPUs to TPU through torchax.

Public names resolve on first use, so that importing tpuport imports neither torch nor
jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tpuport.version import __version__

if TYPE_CHECKING:  # what type checkers and editors see; the same names as below
    from tpuport import attention as attention
    from tpuport import patches as patches
    from tpuport.activation import disable as disable
    from tpuport.activation import enable as enable
    from tpuport.compilation import compile as compile
    from tpuport.compilation.rotary_tables import (
        precompute_rotary as precompute_rotary,
    )
    from tpuport.diffusion import denoise as denoise
    from tpuport.errors import PortError as PortError
    from tpuport.generation import LanguageModel as LanguageModel
    from tpuport.generation import generate as generate
    from tpuport.generation import kv_cache_bytes as kv_cache_bytes
    from tpuport.gpu import gpu_shim as gpu_shim
    from tpuport.hardware.mesh import create_mesh as create_mesh
    from tpuport.hardware.mesh import initialize_distributed as initialize_distributed
    from tpuport.porting import load as load
    from tpuport.porting import port as port
    from tpuport.porting import to_cpu as to_cpu
    from tpuport.quantization import QuantizationRules as QuantizationRules
    from tpuport.sharding import ShardingRules as ShardingRules
    from tpuport.verification import check as check

_PUBLIC = {
    "PortError": "tpuport.errors",
    "enable": "tpuport.activation",
    "disable": "tpuport.activation",
    "create_mesh": "tpuport.hardware.mesh",
    "initialize_distributed": "tpuport.hardware.mesh",
    "ShardingRules": "tpuport.sharding",
    "QuantizationRules": "tpuport.quantization",
    "load": "tpuport.porting",
    "port": "tpuport.porting",
    "to_cpu": "tpuport.porting",
    "compile": "tpuport.compilation",
    "generate": "tpuport.generation",
    "LanguageModel": "tpuport.generation",
    "gpu_shim": "tpuport.gpu",
    "kv_cache_bytes": "tpuport.generation",
    "denoise": "tpuport.diffusion",
    "precompute_rotary": "tpuport.compilation.rotary_tables",
    "check": "tpuport.verification",
}

# Rooms whose own names are public.
_MODULES = ("attention", "patches")

__all__ = ["__version__", *_PUBLIC, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tpuport.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tpuport' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, *_MODULES])
