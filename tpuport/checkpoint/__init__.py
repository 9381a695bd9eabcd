"""Weights into sharded arrays: from safetensors on disk (`load`) or from a model in memory (`port`)."""

from tpuport.checkpoint.fetching import to_cpu
from tpuport.checkpoint.loading import load
from tpuport.checkpoint.porting import mark_ported, mesh_of, port, ported_models, times_ported

__all__ = ["load", "mark_ported", "mesh_of", "port", "ported_models", "times_ported", "to_cpu"]
