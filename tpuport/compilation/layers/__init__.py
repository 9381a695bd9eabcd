"""Identical blocks of a model: their weights stacked, and one of them traced in a loop
for all.
"""

from tpuport.compilation.layers.block_calls import (
    CallRecord,
    mark_blocks,
    record_calls,
)
from tpuport.compilation.layers.scan_policy import ScanDecision, decide_scan
from tpuport.compilation.layers.scanning import (
    DeclinedBlocks,
    ScannedBlocks,
    loop_blocks,
)
from tpuport.compilation.layers.stacks import (
    Stack,
    StackedWeight,
    block_weight_names,
    find_stacks,
    split_stacked,
    stack_layers,
    stack_weights,
    stacked_arrays,
    stacked_lists,
    unstack_layers,
    unstack_weights,
)

__all__ = [
    "CallRecord",
    "DeclinedBlocks",
    "ScanDecision",
    "ScannedBlocks",
    "Stack",
    "StackedWeight",
    "block_weight_names",
    "decide_scan",
    "find_stacks",
    "loop_blocks",
    "mark_blocks",
    "record_calls",
    "split_stacked",
    "stack_layers",
    "stack_weights",
    "stacked_arrays",
    "stacked_lists",
    "unstack_layers",
    "unstack_weights",
]  # fmt: skip
