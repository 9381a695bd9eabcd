"""Why there is no program that fits: the arrays that are too large, and the lines of code that make them."""

from tpuport.topology.failures import assigned
from tpuport.topology.failures.assigned import Assignment
from tpuport.topology.failures.memory import UNFIT, by_line, too_large, used
from tpuport.topology.failures.traced import largest

__all__ = ["UNFIT", "Assignment", "assigned", "by_line", "largest", "too_large", "used"]
