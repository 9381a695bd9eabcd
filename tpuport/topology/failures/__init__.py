"""Why there is no program that fits: the line of code, the rule that finds it, the arrays that are too large."""

from tpuport.topology.failures.cannot_trace import CannotTrace, explain, in_code
from tpuport.topology.failures.compiler import refused
from tpuport.topology.failures.memory import UNFIT, by_line, too_large, used

__all__ = ["UNFIT", "CannotTrace", "by_line", "explain", "in_code", "refused", "too_large", "used"]
