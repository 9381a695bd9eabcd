"""Weights into sharded arrays: from safetensors on disk (`load`) or from a model in memory (`port`)."""

from tpuport.checkpoint.loading import load
from tpuport.checkpoint.moving import model_mesh, port, port_count, ported_models, record_port, to_cpu

__all__ = ["load", "model_mesh", "port", "port_count", "ported_models", "record_port", "to_cpu"]
