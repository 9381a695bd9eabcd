"""TPC017: an axis of the mesh whose devices all do the same."""

from collections.abc import Iterator

from tpuport.topology.advice import tpc002_replicated_weight, work
from tpuport.topology.advice.even import more_tp
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import axes, is_used_by_weights
from tpuport.topology.advice.remedies import more_rows
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import work as flops


def check(evidence: Evidence) -> Iterator[Hit]:
    """Axes other than dp that divide no weight, no cache and no attention, and along which nothing is sent."""
    for axis, parts in evidence.sizes.items():
        if axis == "dp" or _is_used(evidence, axis):
            continue
        found, spared = work.repeated(evidence, axis), work.excess_of(evidence, axis)
        # Without a count there is no telling, except for a cache that is there and not divided.
        if not work.is_repeated(evidence, axis) and evidence.report.task != "decode":
            continue
        if axis in evidence.model_axes and any(tpc002_replicated_weight.check(evidence)):
            continue
        rows = more_rows(evidence)
        more = f", each doing {found:.2f} times what it has to" if found else ""
        yield Hit(
            f"{axis}={parts} divides no weight, no cache and no attention, and nothing is sent along it: its {parts} "
            f"devices do the same{more}" + (f" ({flops(spared)} too much)" if found else ""),
            f"give these devices to another axis: {more_tp(evidence) or 'a smaller slice does as much'}"
            + (f", or {rows}" if rows else "")
            + ("; sp is for long prompts, and a decode step has one token a row" if axis == "sp" else ""),
            spared,
            "flops",
        )


def _is_used(evidence: Evidence, axis: str) -> bool:
    sent = any(axis in one.axes for one in evidence.report.collectives)
    shared = any(f"over {axis}=" in call.mesh for call, _ in evidence.report.attention)
    cached = any(axis in axes(array) for array in evidence.cache if array.sharding is not None)
    return sent or shared or cached or is_used_by_weights(evidence, axis)


RULE = Rule(
    id="TPC017",
    name="unused-axis",
    summary="an axis of the mesh whose devices all do the same",
    why="""An axis that divides nothing multiplies the devices and not the work that gets done. sp shares out the
queries of long attention, and a decode step has one query a row: with sp=2 half of the devices are spare.""",
    measured="""Axes other than dp that no weight's or cache's sharding names, that no attention call is shared out
over, and that no collective runs along, where the step's FLOPs are not divided by them either (in a decode step,
always).""",
    before="""compile_for(model, Decode(batch=1), topology="v5e:2x4", sp=2, tp=4)""",
    after="""compile_for(model, Decode(batch=1), topology="v5e:2x4", tp=8)""",
    check=check,
)
