"""A TPU that is not there: described, compiled for, and its kernels' schedules counted."""

import importlib
from typing import TYPE_CHECKING, Any

from tpuport.topology.describe import GENERATIONS, compiled, described, generation_of

if TYPE_CHECKING:
    from tpuport.topology.compiling import compile_for as compile_for
    from tpuport.topology.report import Report as Report

# Resolved on first use: they need the whole package, where describing a TPU needs none of it.
_LATE = {"compile_for": "tpuport.topology.compiling", "Report": "tpuport.topology.report"}

__all__ = ["GENERATIONS", "Report", "compile_for", "compiled", "described", "generation_of"]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'tpuport.topology' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
