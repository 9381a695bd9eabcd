"""Splits of the mesh whose tp cuts through no head: what rules propose in the place of tp over all devices."""

from tpuport.topology import mesh_splits
from tpuport.topology.advice import work
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedies import all_over_tp, alone_on


def more_tp(evidence: Evidence) -> str:
    """`remedies.all_over_tp`; where that cuts through heads, the split with the most tp that suits them, or "".

    It suits the batch as well, and the sequence of a prompt, and a device can hold its weights and cache.
    """
    if not cut_by(evidence, evidence.mesh.size):
        return all_over_tp(evidence)
    shapes = [call.query for call, _ in evidence.report.attention]
    facts = mesh_splits.Facts(
        batch=work.batch(evidence) or 1,
        sequences=tuple(sorted({shape[2] for shape in shapes})),
        divides_blocks=False,
    )
    sizes = {axis: evidence.sizes.get(axis, 1) for axis in ("dp", "sp", "tp")}
    found = [
        one
        for one, reason in mesh_splits.split_reasons(evidence.mesh.size, facts).items()
        if not reason
        and one.tp > sizes["tp"] // 2
        and one != tuple(sizes.values())
        and not cut_by(evidence, one.tp)
        and alone_on(evidence, dp=one.dp, tp=one.tp) <= evidence.report.memory.capacity
    ]
    if not found:
        return ""
    best = max(found, key=lambda one: (one.tp, one.dp))
    named = [(axis, getattr(best, axis)) for axis in ("dp", "sp", "tp") if getattr(best, axis) > 1]
    mesh = ", ".join(f"{axis}={size}" for axis, size in named)
    return f"tpuport.create_mesh({mesh}) ({' '.join(f'--{axis} {size}' for axis, size in named)})"


def cut_by(evidence: Evidence, tp: int) -> str:
    """Why tp does not suit the heads of some attention call; "" where it does."""
    reasons = (mesh_splits.uneven(tp, call.query[1], call.key[1]) for call, _ in evidence.report.attention)
    return next(filter(None, reasons), "")
