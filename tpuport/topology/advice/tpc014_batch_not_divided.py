"""TPC014: devices along dp that have no rows of their own."""

from collections.abc import Iterator

from tpuport.topology.advice import work
from tpuport.topology.advice.even import cut_by, more_tp
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import SMALL, all_held
from tpuport.topology.advice.remedies import are_over_dp, inputs_over_dp
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import work as flops


def check(evidence: Evidence) -> Iterator[Hit]:
    """A batch that dp does not divide, or one that is not shared out."""
    parts, rows = evidence.sizes.get("dp", 1), work.batch(evidence)
    if parts == 1 or rows is None or rows < 1:
        return
    if evidence.report.task != "forward" and rows % parts:
        yield from _filled(evidence, rows, parts)
    elif work.is_repeated(evidence, "dp") and not are_over_dp(evidence):
        found, more = work.repeated(evidence, "dp"), work.excess_of(evidence, "dp")
        why = f"{rows} rows do not divide over" if rows % parts else f"{rows} rows are not shared out over"
        yield Hit(
            f"{why} dp={parts}: each device does {found:.2f} times what it has to along dp, {flops(more)} too much",
            _remedy(evidence, rows, parts),
            more,
            "flops",
        )


def _remedy(evidence: Evidence, rows: int, parts: int) -> str:
    if not evidence.report.fits:  # rows of its own leave a device all of its weights
        uneven = cut_by(evidence, evidence.mesh.size)
        more = f"take chips with more memory (--list-topologies): {uneven}"
        return f"let {_share(evidence)}" if more_tp(evidence) else more
    batch = f"a batch of a multiple of {parts} rows; " if rows % parts else ""
    # A few kilobytes have nothing to share out.
    rest = f"; or let {_share(evidence)}" if all_held(evidence) >= SMALL and more_tp(evidence) else ""
    return f"{batch}{inputs_over_dp()}{rest}"


def _share(evidence: Evidence) -> str:
    which = "as many devices as the heads allow" if cut_by(evidence, evidence.mesh.size) else "all devices"
    return f"{which} share out the weights: {more_tp(evidence)}"


def _filled(evidence: Evidence, rows: int, parts: int) -> Iterator[Hit]:
    filled, costs = -(-rows // parts) * parts, evidence.report.costs
    idle, other = filled - rows, more_tp(evidence)
    uneven = cut_by(evidence, evidence.mesh.size)
    tp = f", or a smaller dp and more tp: {other}" if other and not uneven else ""
    tp = tp or (f", or {other}; {uneven}" if other else f"; {uneven}")
    yield Hit(
        f"{rows} rows over dp={parts} are filled up to {filled}: {idle / filled:.0%} of the work is on rows that "
        "nobody asked for",
        f"a batch of a multiple of {parts} (--batch {filled}){tp}",
        0.0 if costs is None else costs.flops * idle / filled,
        "flops",
    )


RULE = Rule(
    id="TPC014",
    name="batch-not-divided",
    summary="a batch that the devices along dp do not share",
    why="""dp is rows of the batch. One row over dp=4 is one device at work and three that do the same, or nothing of
use; a model that needs more devices for one row wants tp (or sp, for long prompts). Attention, `generate`'s loop and
tpuport's sharing out of a diffusion model's sequence divide rows by themselves. Everything else of a forward call is
done on the inputs as they are given, and those are whole on every device unless they come sharded over dp.""",
    measured="""For `generate`'s programs, rows that fill the batch up to a multiple of dp; for a forward call, FLOPs
of a device beyond its share of the model's, by about what dp should divide, from 1 GFLOP; what an axis that divides
no weight repeats is taken off, and is not in the cost.""",
    before="""x = jax.ShapeDtypeStruct((8, 512, 1024), jnp.bfloat16)
compile_for(model, {"x": x}, topology="v5e:2x4", mesh=mesh)   # dp=8""",
    after="""rows = NamedSharding(mesh, PartitionSpec("dp"))
x = jax.ShapeDtypeStruct((8, 512, 1024), jnp.bfloat16, sharding=rows)
compile_for(model, {"x": x}, topology="v5e:2x4", mesh=mesh)""",
    check=check,
)
