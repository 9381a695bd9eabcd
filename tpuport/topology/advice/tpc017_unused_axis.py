"""TPC017: an axis of the mesh whose devices all do the same."""

from collections.abc import Iterator

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_flops
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import propose_rows, propose_tp
from tpuport.topology.advice.repeated_work import excess_flops_along, is_repeated_along, repetition_along
from tpuport.topology.advice.weight_placement import divides_weights, sharding_axes


def check(evidence: Evidence) -> Iterator[Hit]:
    """Axes other than dp that divide no weight, no cache and no attention, and along which nothing is sent."""
    for axis in evidence.axis_sizes:
        if axis == "dp" or _is_used(evidence, axis):
            continue
        # A forward call may be too small to count; a decode step has a cache that would be divided.
        if is_repeated_along(evidence, axis) or evidence.report.task == "decode":
            yield _describe(evidence, axis)


def _is_used(evidence: Evidence, axis: str) -> bool:
    report = evidence.report
    return (
        divides_weights(evidence, axis)
        or any(axis in collective.axes for collective in report.collectives)
        or any(f"over {axis}=" in call.mesh for call, _ in report.attention)
        or any(axis in sharding_axes(array) for array in evidence.cache if array.sharding is not None)
    )


def _describe(evidence: Evidence, axis: str) -> Hit:
    parts = evidence.axis_sizes[axis]
    repetition, spared = repetition_along(evidence, axis), excess_flops_along(evidence, axis)
    message = (
        f"{axis}={parts} divides no weight, no cache and no attention, and nothing is sent along it: its {parts} "
        "devices do the same"
    )
    if repetition:
        message += f", each doing {repetition:.2f} times what it has to ({format_flops(spared)} too much)"
    remedy = f"give these devices to another axis: {propose_tp(evidence) or 'a smaller slice does as much'}"
    rows = propose_rows(evidence)
    if rows:
        remedy += f", or {rows}"
    if axis == "sp":
        remedy += "; sp is for long prompts, and a decode step has one token a row"
    # TPC002 says of an axis for weights which weights it could divide.
    explained_by = frozenset(("TPC002",)) if axis in evidence.model_axes else frozenset[str]()
    return Hit(message, remedy, spared, "flops", explained_by=explained_by)


RULE = AdviceRule(
    id="TPC017",
    name="unused-axis",
    summary="an axis of the mesh whose devices all do the same",
    why="""An axis that divides nothing multiplies the devices and not the work that gets done. sp divides the queries
of long attention, and a decode step has one query a row: with sp=2 half of the devices are spare.""",
    measured="""Axes other than dp that no weight's or cache's sharding names, over which no attention call is divided,
and along which no collective runs, if they do not divide the step's FLOPs either (in a decode step, always).""",
    before="""compile_for(
    llama, Decode(batch=2, max_cache_len=256), topology="v6e:2x2", sp=2, tp=2, dtype="bfloat16"
)""",
    after="""compile_for(
    llama, Decode(batch=2, max_cache_len=256), topology="v6e:2x2", tp=4, dtype="bfloat16"
)""",
    check=check,
)
