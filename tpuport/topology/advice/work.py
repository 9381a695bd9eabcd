"""Work that is done more than once, and whether it is known why."""

from math import prod
from typing import Any, Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import is_used_by_weights
from tpuport.topology.generation_tasks import Decode, Prefill

# Products that the compiler pads or does in parts are a few percent of a real model.
MORE: Final = 1.25
# Less than it is over in five microseconds on the slowest chip, a v5e.
LEAST: Final = 1e9


def ratio(evidence: Evidence) -> float | None:
    """FLOPs of a device in products over its share of the model's; None where there is too little to tell."""
    costs = evidence.report.costs
    # Few rows by all groups are the compiler's choice: their matrices are read anyway, and take longer.
    if costs is None or costs.model_flops <= 0 or excess(evidence) < LEAST:
        return None
    return (costs.product_flops - costs.expanded_flops) / costs.model_flops


def is_repeated(evidence: Evidence, axis: str) -> bool:
    """Whether the devices of an axis may all be doing the same: the work is about so many times what it has to be."""
    # Half of what an axis could divide and does not: attention or the embedding may be shared out all the same.
    found = repeated(evidence, axis)
    return found is not None and found >= 1 + (evidence.sizes.get(axis, 1) - 1) / 2


def repeated(evidence: Evidence, axis: str) -> float | None:
    """How many times an axis lets work be done, at most its size; None where there is too little to tell.

    What the other axes of the model repeat, as they divide no weight, is theirs.
    """
    found = ratio(evidence)
    if found is None:
        return None
    idle = (
        n for one, n in evidence.model_axes.items() if one != axis and not is_used_by_weights(evidence, one)
    )
    return max(1.0, min(found / prod(idle), float(evidence.sizes.get(axis, 1))))


def excess_of(evidence: Evidence, axis: str) -> float:
    """FLOPs that a device would be spared if this axis repeated nothing and all else stayed as it is."""
    costs, found = evidence.report.costs, repeated(evidence, axis)
    return 0.0 if costs is None or found is None else costs.product_flops * (1 - 1 / found)


def excess(evidence: Evidence) -> float:
    """FLOPs that a device does beyond its share."""
    costs = evidence.report.costs
    return 0.0 if costs is None else costs.product_flops - costs.expanded_flops - costs.model_flops


def batch(evidence: Evidence) -> int | None:
    """Rows of a call: of the task, of its attention, or of its first tensor."""
    task: Any = evidence.inputs.get("batch")
    if isinstance(task, int) and evidence.report.task != "forward":
        return task
    for value in evidence.inputs.values():
        if isinstance(value, Prefill | Decode):
            return value.batch
    rows = [call.query[0] for call, _ in evidence.report.attention if call.query]
    shapes = [tuple(value.shape) for value in evidence.inputs.values() if getattr(value, "shape", ())]
    rows += [shape[0] for shape in shapes]
    return rows[0] if rows else None
