"""What a traced program computes, and what its Pallas kernels do over their grids; XLA
cannot look into a kernel.
"""

from tpuport.topology.kernels.kernel_calls import KernelCall, KernelCost, product_flops
from tpuport.topology.kernels.work_counter import TracedWork, count_work

__all__ = ["KernelCall", "KernelCost", "TracedWork", "count_work", "product_flops"]
