"""Work that devices do more than once, and which axis repeats it."""

from math import prod
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import divides_weights
from tpuport.topology.compile_report import Costs

# The products that the compiler pads or does in parts are a few percent of a real
# model.
MOST_RATIO: Final = 1.25
# Fewer FLOPs take less than five microseconds on the slowest chip, a v5e.
LEAST_FLOPS: Final = 1e9


def work_ratio(evidence: Evidence) -> float:
    """FLOPs of a device in products over its share of the model's; 1 if there is too
    little to tell.
    """
    costs = evidence.costs
    if costs.model_flops <= 0 or excess_flops(evidence) < LEAST_FLOPS:
        return 1.0
    return _necessary_flops(costs) / costs.model_flops


def excess_flops(evidence: Evidence) -> float:
    """FLOPs that a device does beyond its share."""
    return _necessary_flops(evidence.costs) - evidence.costs.model_flops


def _necessary_flops(costs: Costs) -> float:
    """FLOPs of a device in products, without those that are faster than to do without
    them.

    Few rows by all groups are the compiler's choice, and digits are ours: matrices are
    read anyway, which takes longer.
    """
    return costs.product_flops - costs.expanded_flops - costs.digit_flops


def repetition_along(evidence: Evidence, axis: str) -> float:
    """How often the devices of an axis do the same work: from 1, also if there is too
    little to tell, to its size.

    What the other axes of the model repeat because they divide no weight is not
    counted.
    """
    others = evidence.model_axes.keys() - {axis}
    idle = [
        evidence.model_axes[other]
        for other in others
        if not divides_weights(evidence, other)
    ]
    return max(
        1.0, min(work_ratio(evidence) / prod(idle), float(evidence.axis_sizes[axis]))
    )


def is_repeated_along(evidence: Evidence, axis: str) -> bool:
    """Whether all devices of an axis may be doing the same work."""
    # Half of what an axis could divide and does not: it may divide attention or the
    # embedding all the same.
    return repetition_along(evidence, axis) >= 1 + (evidence.axis_sizes[axis] - 1) / 2


def excess_flops_along(evidence: Evidence, axis: str) -> float:
    """FLOPs that a device would be spared if this axis repeated nothing, and all else
    stayed the same.
    """
    return evidence.costs.product_flops * (1 - 1 / repetition_along(evidence, axis))


def batch_rows(evidence: Evidence) -> int:
    """Rows of a call: of the task, of its attention, or of its first tensor; 0 if none
    of them says.
    """
    if evidence.report.task != "forward":
        return evidence.inputs.get("batch", 0)
    # Attention is the surest: an input may be anything, such as a table.
    shapes = [call.query for call, _ in evidence.report.attention]
    shapes += [tuple(getattr(value, "shape", ())) for value in evidence.inputs.values()]
    return next((shape[0] for shape in shapes if shape), 0)
