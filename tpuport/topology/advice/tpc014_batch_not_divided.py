"""TPC014: devices along dp that have no rows of their own."""

from collections.abc import Iterator

from tpuport.topology.advice import work
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import work as flops


def check(evidence: Evidence) -> Iterator[Hit]:
    """A batch that dp does not divide, or one that is not shared out."""
    parts, rows = evidence.sizes.get("dp", 1), work.batch(evidence)
    if parts == 1 or rows is None:
        return
    if evidence.report.task != "forward" and rows % parts:
        yield from _filled(evidence, rows, parts)
    elif work.is_repeated(evidence, "dp"):
        found = work.ratio(evidence)
        why = f"{rows} rows do not divide over" if rows % parts else f"{rows} rows are not shared out over"
        yield Hit(
            f"{why} dp={parts}: each device does {found:.2f} times its share, {flops(work.excess(evidence))} too much",
            f"a batch of a multiple of {parts} rows"
            if rows % parts
            else "use another axis: tpuport.create_mesh(tp=...); attention over rows is what shares a batch out",
            work.excess(evidence),
            "flops",
        )


def _filled(evidence: Evidence, rows: int, parts: int) -> Iterator[Hit]:
    filled, costs = -(-rows // parts) * parts, evidence.report.costs
    idle = filled - rows
    yield Hit(
        f"{rows} rows over dp={parts} are filled up to {filled}: {idle / filled:.0%} of the work is on rows that "
        "nobody asked for",
        f"a batch of a multiple of {parts}, or a smaller dp and more tp: tpuport.create_mesh(tp=...)",
        0.0 if costs is None else costs.flops * idle / filled,
        "flops",
    )


RULE = Rule(
    id="TPC014",
    name="batch-not-divided",
    summary="a batch that the devices along dp do not share",
    why="""dp is rows of the batch. One row over dp=4 is one device at work and three that do the same, or nothing of
use; a model that needs more devices for one row wants tp (or sp, for long prompts).""",
    measured="""For `generate`'s programs, rows that fill the batch up to a multiple of dp; for a forward call, FLOPs
of a device beyond its share of the model's, by about what dp should divide, from 1 GFLOP.""",
    before="""compile_for(model, Decode(batch=1), topology="v5e:2x4", dp=2, tp=4)""",
    after="""compile_for(model, Decode(batch=1), topology="v5e:2x4", tp=8)""",
    check=check,
)
