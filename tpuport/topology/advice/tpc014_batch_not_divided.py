"""TPC014: devices along dp that have no rows of their own."""

from collections.abc import Iterator

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_flops
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import (
    INPUTS_OVER_DP,
    has_inputs_over_dp,
    propose_tp,
    proposed_tp_rules,
    uneven_heads_reason,
)
from tpuport.topology.advice.repeated_work import (
    batch_rows,
    excess_flops_along,
    is_repeated_along,
    repetition_along,
)
from tpuport.topology.advice.weight_placement import SMALL, device_weight_bytes


def check(evidence: Evidence) -> Iterator[Hit]:
    """A batch that dp does not divide, or a batch that is whole on every device."""
    parts, rows = evidence.axis_sizes.get("dp", 1), batch_rows(evidence)
    if parts == 1 or rows == 0:
        return
    # `generate` fills the batch up; a forward call takes it as it comes.
    if evidence.report.task != "forward" and rows % parts:
        yield _describe_filled_batch(evidence, rows, parts)
    elif is_repeated_along(evidence, "dp") and not has_inputs_over_dp(evidence):
        repetition, excess = (
            repetition_along(evidence, "dp"),
            excess_flops_along(evidence, "dp"),
        )
        reason = "do not divide" if rows % parts else "are not divided"
        yield Hit(
            f"{rows} rows {reason} over dp={parts}: each device does {repetition:.2f} times its share of the work, "
            f"{format_flops(excess)} too much",
            _remedy(evidence, rows, parts),
            excess,
            "flops",
            rules=proposed_tp_rules(evidence),
        )


def _remedy(evidence: Evidence, rows: int, parts: int) -> str:
    tp = _propose_dividing_weights(evidence)
    # With rows of its own a device still has all of its weights.
    if not evidence.report.fits:
        uneven = uneven_heads_reason(evidence, evidence.mesh.size)
        return tp or f"take chips with more memory (--list-topologies): {uneven}"
    remedy = INPUTS_OVER_DP
    if rows % parts:
        remedy = f"a batch of a multiple of {parts} rows; {remedy}"
    # A few kilobytes of weights are not worth dividing.
    if tp and device_weight_bytes(evidence, evidence.weights) >= SMALL:
        remedy += f"; or {tp}"
    return remedy


def _propose_dividing_weights(evidence: Evidence) -> str:
    mesh = propose_tp(evidence)
    if not mesh:
        return ""
    is_uneven = uneven_heads_reason(evidence, evidence.mesh.size)
    devices = "as many devices as the heads allow" if is_uneven else "all devices"
    return f"divide the weights over {devices}: {mesh}"


def _describe_filled_batch(evidence: Evidence, rows: int, parts: int) -> Hit:
    # tpuport repeats the last row: its work is as much as that of any other.
    filled = -(-rows // parts) * parts
    idle = (filled - rows) / filled
    mesh, uneven = (
        propose_tp(evidence),
        uneven_heads_reason(evidence, evidence.mesh.size),
    )
    match bool(mesh), bool(uneven):
        case True, False:
            alternative = f", or a smaller dp and more tp: {mesh}"
        case True, True:
            alternative = f", or {mesh}; {uneven}"
        case _:
            alternative = f"; {uneven}"
    return Hit(
        f"{rows} rows over dp={parts} are filled up to {filled}: {idle:.0%} of the work is on padding rows",
        f"a batch of a multiple of {parts} (--batch {filled}){alternative}",
        evidence.costs.flops * idle,
        "flops",
        rules=proposed_tp_rules(evidence),
    )


RULE = AdviceRule(
    id="TPC014",
    name="batch-not-divided",
    summary="a batch that is not divided over the devices along dp",
    why="""dp divides the rows of the batch. With one row over dp=4, one device works and three repeat its work; a
model that needs more devices for a single row needs tp (or sp, for long prompts). tpuport itself divides attention,
`generate`'s loop, and the sequence of a diffusion model. Everything else in a forward call works on the inputs as they
are passed in, and those are whole on every device unless they are sharded over dp.""",
    measured="""For `generate`'s programs, the rows that pad the batch to a multiple of dp. For a forward call, a
device's FLOPs beyond its share of the model's, if the excess is about what dp should have divided, from 1 GFLOP; work
that an axis repeats because it divides no weight does not count.""",
    before="""mesh = tpuport.create_mesh(dp=4, devices=described("v6e:2x2").devices)
x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)
compile_for(
    lambda: MLP(1024), {"x": x}, topology="v6e:2x2", mesh=mesh, rules=ShardingRules({}), dtype="bfloat16"
)""",
    after="""mesh = tpuport.create_mesh(dp=4, devices=described("v6e:2x2").devices)
rows = NamedSharding(mesh, PartitionSpec("dp"))
x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16, sharding=rows)
compile_for(
    lambda: MLP(1024), {"x": x}, topology="v6e:2x2", mesh=mesh, rules=ShardingRules({}), dtype="bfloat16"
)""",
    check=check,
)
