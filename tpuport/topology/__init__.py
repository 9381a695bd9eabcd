"""A TPU that is not there: described, compiled for, and its kernels' schedules counted."""

from tpuport.topology.describe import GENERATIONS, compiled, described, generation_of

__all__ = ["GENERATIONS", "compiled", "described", "generation_of"]
