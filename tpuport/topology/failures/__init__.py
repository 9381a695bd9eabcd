"""Why there is no program that fits: the line of code, the rule that finds it, the arrays that are too large."""

from tpuport.topology.failures import assigned
from tpuport.topology.failures.assigned import Assignment
from tpuport.topology.failures.cannot_trace import CannotTrace, explain, in_code
from tpuport.topology.failures.compiler import refused
from tpuport.topology.failures.memory import UNFIT, by_line, too_large, used
from tpuport.topology.failures.traced import largest

__all__ = [
    "UNFIT", "Assignment", "CannotTrace", "assigned", "by_line", "explain", "in_code", "largest", "refused",
    "too_large", "used",
]  # fmt: skip
