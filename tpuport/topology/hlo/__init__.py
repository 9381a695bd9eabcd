"""What a compiled program's text tells: what it computes, keeps, moves and sends, and from which line of code."""

from tpuport.topology.hlo.array_types import HBM, Array, arrays
from tpuport.topology.hlo.collectives import list_collectives
from tpuport.topology.hlo.compiler_kernels import count_expanded_flops
from tpuport.topology.hlo.flop_counts import (
    OtherRateFlops,
    count_flops,
    count_other_rate_flops,
    count_product_flops,
)
from tpuport.topology.hlo.keeping import list_buffers
from tpuport.topology.hlo.kernel_costs import apply_kernel_costs, list_kernels
from tpuport.topology.hlo.program import Computation, Instruction, Program
from tpuport.topology.hlo.reading import parse, square_arrays
from tpuport.topology.hlo.source_lines import innermost_source
from tpuport.topology.hlo.traffic import count_hbm_bytes

__all__ = [
    "HBM", "Array", "Computation", "Instruction", "OtherRateFlops", "Program", "apply_kernel_costs", "arrays",
    "count_expanded_flops", "count_flops", "count_hbm_bytes", "count_other_rate_flops", "count_product_flops",
    "innermost_source", "list_buffers", "list_collectives", "list_kernels", "parse", "square_arrays",
]  # fmt: skip
