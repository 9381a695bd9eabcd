"""What is known of TPUs: a record for each generation, the slices that can be rented,
and libtpu's descriptions.
"""

from tpuport.hardware.generations import (
    GENERATIONS,
    GIB,
    Figure,
    Generation,
    assume_generation,
    generation_of_kind,
    local_generation,
    target_generation,
)
from tpuport.hardware.libtpu import (
    LIBTPU_ENVIRONMENT,
    compiled,
    compiler_options,
    described,
    generation_of,
    start_backends,
    tpu_chips,
    without_compilation_cache,
)
from tpuport.hardware.slices import SMALLEST_SLICES, Slice, legal_slices, parse_slice

__all__ = [
    "GENERATIONS", "GIB", "LIBTPU_ENVIRONMENT", "SMALLEST_SLICES", "Figure", "Generation", "Slice",
    "assume_generation", "compiled", "compiler_options", "described", "generation_of", "generation_of_kind",
    "legal_slices", "local_generation", "parse_slice", "start_backends", "target_generation", "tpu_chips",
    "without_compilation_cache",
]  # fmt: skip
