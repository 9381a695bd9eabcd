"""Work that devices do more than once, and which axis repeats it."""

from math import prod
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import divides_weights
from tpuport.topology.generation_tasks import Decode, Prefill

# The products that the compiler pads or does in parts are a few percent of a real model.
MOST_RATIO: Final = 1.25
# Fewer FLOPs take less than five microseconds on the slowest chip, a v5e.
LEAST_FLOPS: Final = 1e9


def work_ratio(evidence: Evidence) -> float | None:
    """FLOPs of a device in products over its share of the model's; None if there is too little to tell."""
    costs = evidence.costs
    if costs.model_flops <= 0 or excess_flops(evidence) < LEAST_FLOPS:
        return None
    # Few rows by all groups are the compiler's choice: their matrices are read anyway, which takes longer.
    return (costs.product_flops - costs.expanded_flops) / costs.model_flops


def excess_flops(evidence: Evidence) -> float:
    """FLOPs that a device does beyond its share."""
    costs = evidence.costs
    return costs.product_flops - costs.expanded_flops - costs.model_flops


def repetition_along(evidence: Evidence, axis: str) -> float | None:
    """How often the devices of an axis do the same work, at most its size; None if there is too little to tell.

    What the other axes of the model repeat because they divide no weight is not counted.
    """
    ratio = work_ratio(evidence)
    if ratio is None:
        return None
    idle = [
        size
        for other, size in evidence.model_axes.items()
        if other != axis and not divides_weights(evidence, other)
    ]
    return max(1.0, min(ratio / prod(idle), float(evidence.axis_sizes.get(axis, 1))))


def is_repeated_along(evidence: Evidence, axis: str) -> bool:
    """Whether all devices of an axis may be doing the same work."""
    # Half of what an axis could divide and does not: it may divide attention or the embedding all the same.
    repetition = repetition_along(evidence, axis)
    return repetition is not None and repetition >= 1 + (evidence.axis_sizes.get(axis, 1) - 1) / 2


def excess_flops_along(evidence: Evidence, axis: str) -> float:
    """FLOPs that a device would be spared if this axis repeated nothing, and all else stayed the same."""
    repetition = repetition_along(evidence, axis) or 1.0
    return evidence.costs.product_flops * (1 - 1 / repetition)


def batch_rows(evidence: Evidence) -> int | None:
    """Rows of a call: of the task, of its attention, or of its first tensor."""
    batch = evidence.inputs.get("batch")
    if isinstance(batch, int) and evidence.report.task != "forward":
        return batch
    for value in evidence.inputs.values():
        if isinstance(value, Prefill | Decode):
            return value.batch
    # Attention is the surest: an input may be anything, such as a table.
    shapes = [call.query for call, _ in evidence.report.attention]
    shapes += [tuple(getattr(value, "shape", ())) for value in evidence.inputs.values()]
    rows = [shape[0] for shape in shapes if shape]
    return rows[0] if rows else None
