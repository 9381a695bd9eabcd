"""Described TPUs: models compiled for them, mesh splits compared, and estimates of how
fast a step can be.

A request is checked (`compile_job`), the model is built without weights (`targets`),
its step traced and sharded (`lowering`) and compiled by the TPU compiler in libtpu. The
compiled program (`hlo`, `kernels`) and the schedules of its kernels
(`hardware.schedules`) give the time of each instruction (`timing`), and the report with
its advice, one file each.

libtpu can be loaded by one process at a time, prints to standard output, and cannot be
interrupted; so the compiler runs in a child process, and requests and reports are lines
of JSON between the two. The report has one form throughout, whose schema is
docs/data/compile-schema.json. If the program does not fit, the report is made from the
compiler's own buffer assignment.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tpuport.hardware import SMALLEST_SLICES as GENERATIONS
from tpuport.hardware import compiled, described, generation_of
from tpuport.topology.generation_tasks import Decode, Prefill

if TYPE_CHECKING:
    from tpuport.topology.compile_report import Profile as Profile
    from tpuport.topology.compile_report import Report as Report
    from tpuport.topology.compiling import compile_for as compile_for
    from tpuport.topology.compiling import estimate as estimate
    from tpuport.topology.lowering import lower_for as lower_for
    from tpuport.topology.split_search import suggest_splits as suggest_splits
    from tpuport.trace_errors import CannotTrace as CannotTrace

# Imported on first use: these need torch, jax and the whole package, and describing a
# TPU needs none of it.
_LAZY = {
    "CannotTrace": "tpuport.trace_errors",
    "Profile": "tpuport.topology.compile_report",
    "Report": "tpuport.topology.compile_report",
    "compile_for": "tpuport.topology.compiling",
    "estimate": "tpuport.topology.compiling",
    "lower_for": "tpuport.topology.lowering",
    "suggest_splits": "tpuport.topology.split_search",
}

__all__ = [
    "GENERATIONS", "CannotTrace", "Decode", "Prefill", "Profile", "Report", "compile_for", "compiled", "described",
    "estimate", "generation_of", "lower_for", "suggest_splits",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tpuport.topology' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
