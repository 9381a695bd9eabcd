"""A compiled program's text, read: what it computes, keeps, moves and sends, and from
which line of code.

`parse` gives a `Program`; `ValueFlow` follows a value through it.
"""

from tpuport.topology.hlo.array_types import HBM, Array, parse_arrays
from tpuport.topology.hlo.collectives import list_collectives
from tpuport.topology.hlo.flop_counts import (
    OtherRateFlops,
    count_expanded_flops,
    count_flops,
    count_other_rate_flops,
    count_product_flops,
)
from tpuport.topology.hlo.instructions import Computation, Instruction
from tpuport.topology.hlo.kernel_costs import apply_kernel_costs, list_kernels
from tpuport.topology.hlo.memory_traffic import count_hbm_bytes, list_buffers
from tpuport.topology.hlo.program import Program, parse, square_arrays
from tpuport.topology.hlo.source_lines import innermost_source
from tpuport.topology.hlo.value_flow import Value, ValueFlow

__all__ = [
    "HBM", "Array", "Computation", "Instruction", "OtherRateFlops", "Program", "Value", "ValueFlow",
    "apply_kernel_costs", "count_expanded_flops", "count_flops", "count_hbm_bytes", "count_other_rate_flops",
    "count_product_flops", "innermost_source", "list_buffers", "list_collectives", "list_kernels", "parse",
    "parse_arrays", "square_arrays",
]  # fmt: skip
