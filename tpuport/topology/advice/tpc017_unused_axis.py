"""TPC017: an axis of the mesh whose devices all do the same."""

import dataclasses
from collections.abc import Iterator

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_flops
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import (
    propose_rows,
    propose_tp,
    proposed_tp_rules,
)
from tpuport.topology.advice.repeated_work import (
    excess_flops_along,
    is_repeated_along,
    repetition_along,
)
from tpuport.topology.advice.weight_placement import sharding_axes


def check(evidence: Evidence) -> Iterator[Hit]:
    """Axes other than dp that divide no weight, no cache and no attention, and along
    which nothing is sent.
    """
    for axis in evidence.axis_sizes:
        if axis == "dp" or _is_used(evidence, axis):
            continue
        # A forward call may be too small to count; a decode step has a cache that would
        # be divided.
        if is_repeated_along(evidence, axis) or evidence.report.task == "decode":
            yield _describe(evidence, axis)


def _is_used(evidence: Evidence, axis: str) -> bool:
    used: set[str] = set().union(
        *map(sharding_axes, (*evidence.weights.values(), *evidence.cache)),
        *(collective.axes for collective in evidence.report.collectives),
    )
    # A call of the report says in words what divides it.
    return axis in used or any(
        f"over {axis}=" in call.mesh for call, _ in evidence.report.attention
    )


def _describe(evidence: Evidence, axis: str) -> Hit:
    parts = evidence.axis_sizes[axis]
    repetition, spared = (
        repetition_along(evidence, axis),
        excess_flops_along(evidence, axis),
    )
    message = (
        f"{axis}={parts} divides no weight, no cache and no attention, and nothing is sent along it: its {parts} "
        "devices do the same work"
    )
    if repetition > 1:
        message += (
            f", each {repetition:.2f} times its share ({format_flops(spared)} too much)"
        )
    remedy = f"use these devices for another axis: {propose_tp(evidence) or 'a smaller slice is as fast'}"
    if rows := propose_rows(evidence):
        remedy += f", or {rows}"
    if axis == "sp":
        remedy += "; sp is for long prompts, and a decode step has one token a row"
    hit = Hit(message, remedy, spared, "flops", rules=proposed_tp_rules(evidence))
    # TPC002 says of an axis for weights which weights it could divide.
    if axis in evidence.model_axes:
        hit = dataclasses.replace(hit, explained_by=frozenset({"TPC002"}))
    return hit


RULE = AdviceRule(
    id="TPC017",
    name="unused-axis",
    summary="a mesh axis whose devices all do the same work",
    why="""An axis that divides nothing uses more devices without getting more done. sp divides the queries of long
attention calls, but a decode step has one query per row: with sp=2, half of the devices are redundant.""",
    measured="""Axes other than dp that appear in no sharding of a weight or cache, divide no attention call, and carry
no collective, if they do not divide the step's FLOPs either (in a decode step, regardless of FLOPs).""",
    before="""compile_for(
    llama, Decode(batch=2, max_cache_len=256), topology="v6e:2x2", sp=2, tp=2, dtype="bfloat16"
)""",
    after="""compile_for(
    llama, Decode(batch=2, max_cache_len=256), topology="v6e:2x2", tp=4, dtype="bfloat16"
)""",
    check=check,
)
