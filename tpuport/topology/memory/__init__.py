"""Programs that do not fit into a device's memory: how much they take, and which lines
of code make the arrays.
"""

from tpuport.topology.memory import buffer_assignment
from tpuport.topology.memory.buffer_assignment import BufferAssignment
from tpuport.topology.memory.large_arrays import group_by_line
from tpuport.topology.memory.oversize import (
    ALLOW_OVERSIZE,
    explain_oversize,
    requested_hbm,
)

__all__ = [
    "ALLOW_OVERSIZE", "BufferAssignment", "buffer_assignment", "explain_oversize", "group_by_line", "requested_hbm",
]  # fmt: skip
