"""Weights into sharded arrays: from safetensors on disk (`load`) or from a model in
memory (`port`).
"""

from tpuport.checkpoint.loading import load
from tpuport.checkpoint.moving import (
    fetch,
    forget_mesh,
    model_mesh,
    plan_port,
    port,
    port_count,
    ported_models,
    record_port,
    to_cpu,
)

__all__ = [
    "fetch", "forget_mesh", "load", "model_mesh", "plan_port", "port", "port_count", "ported_models", "record_port",
    "to_cpu",
]  # fmt: skip
