"""What a traced program's Pallas kernels compute and move, counted over their grids; XLA cannot look into a kernel."""

from tpuport.topology.kernels.calls import Call, Cost
from tpuport.topology.kernels.walk import Counted, count

__all__ = ["Call", "Cost", "Counted", "count"]
