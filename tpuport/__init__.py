"""Port PyTorch models written for GPUs to TPU through torchax.

Public names resolve on first use, so that importing tpuport imports neither torch nor jax.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "PortError": "tpuport.errors",
    "enable": "tpuport.activation",
    "disable": "tpuport.activation",
    "create_mesh": "tpuport.mesh",
    "initialize_distributed": "tpuport.mesh",
    "ShardingRules": "tpuport.sharding",
    "load": "tpuport.checkpoint",
    "port": "tpuport.checkpoint",
    "compile": "tpuport.compilation",
    "generate": "tpuport.generation",
    "kv_cache_bytes": "tpuport.generation",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tpuport' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
