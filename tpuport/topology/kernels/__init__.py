"""What a traced program's Pallas kernels compute and move, counted over their grids; XLA cannot look into a kernel."""

from tpuport.topology.kernels.kernel_calls import KernelCall, KernelCost
from tpuport.topology.kernels.walk import TracedWork, count_work

__all__ = ["KernelCall", "KernelCost", "TracedWork", "count_work"]
