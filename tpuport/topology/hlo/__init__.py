"""What a compiled program's text tells: what it computes, keeps, moves and sends, and from which line of code."""

from tpuport.topology.hlo.exchange import collectives
from tpuport.topology.hlo.keeping import buffers
from tpuport.topology.hlo.operations import Rates, flops, products, rates
from tpuport.topology.hlo.own import expanded
from tpuport.topology.hlo.pallas import kernels, take_counts
from tpuport.topology.hlo.program import Computation, Instruction, Program
from tpuport.topology.hlo.reading import instructions, parse, square
from tpuport.topology.hlo.shapes import Array, arrays
from tpuport.topology.hlo.traffic import hbm_bytes

__all__ = [
    "Array", "Computation", "Instruction", "Program", "Rates", "arrays", "buffers", "collectives", "expanded", "flops",
    "hbm_bytes", "instructions", "kernels", "parse", "products", "rates", "square", "take_counts",
]  # fmt: skip
