"""Sharding rules that an advice proposes, tried by compiling the program with them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tpuport.base.plurals import count_noun
from tpuport.errors import PortError
from tpuport.topology.advice.advice_rules import format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import divided_rules
from tpuport.topology.compile_report import Report

# Tracing and compiling a larger program again would keep the user waiting for an
# advice.
_MOST_SECONDS: Final = 10.0
# Of a byte that is sent, beside one of HBM; see `advice_rules`.
_SENT: Final = 4.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of the rules.

    Attributes:
        text: in a phrase.
        is_inferred: whether the best were those of `ShardingRules.infer`.
        is_worse: whether all cost more than the division of the weights saves.
        rules: the best, if they were inferred.
    """

    text: str
    is_inferred: bool = False
    is_worse: bool = False
    rules: Mapping[str, tuple[str | None, ...]] = dataclasses.field(
        default_factory=dict
    )


def try_rules(evidence: Evidence, names: Sequence[str], axis: str, parts: int) -> Trial:
    """Compile the program with rules that divide weights, if that is cheap.

    Args:
        evidence: of the program as it is.
        names: of the weights.
        axis: over which they are to be divided; parts: its size.
    """
    if (
        evidence.recompile is None
        or sum(evidence.report.seconds.values()) > _MOST_SECONDS
    ):
        return Trial("these rules were not compiled to verify them")
    proposals = {False: divided_rules(evidence.weights, names, axis, parts)}
    if inferred := _infer(evidence, axis):
        proposals[True] = inferred
    reports = {
        is_inferred: report
        for is_inferred, rules in proposals.items()
        if (report := evidence.recompile(rules)) is not None
    }
    if not reports:
        return Trial("these rules could not be compiled")
    is_inferred = min(reports, key=lambda known: _cost(reports[known]))
    best = reports[is_inferred]
    text = f"compiled with these rules, a step has {_describe(best)} instead of {_describe(evidence.report)}"
    inferred_rules = (
        {regex: tuple(spec) for regex, spec in proposals[True].items()}
        if is_inferred
        else {}
    )
    return Trial(
        text,
        is_inferred,
        is_worse=_cost(best) > _cost(evidence.report),
        rules=inferred_rules,
    )


def _infer(evidence: Evidence, axis: str) -> dict[str, Any]:
    """The rules of `ShardingRules.infer`; none for a task, or a call that cannot be
    traced.
    """
    # Imported late: only this advice needs it.
    from tpuport.sharding import infer_plan

    if evidence.report.task != "forward" or axis != "tp":
        return {}
    try:
        plan = infer_plan(evidence.model, dict(evidence.inputs), evidence.mesh)
    except (PortError, RuntimeError, TypeError, ValueError):
        return {}
    return {rule.pattern: rule.spec for rule in plan.rules if any(rule.spec)}


def _cost(report: Report) -> float:
    """Bytes of weights on a device, and bytes that it sends, weighed as findings
    are.
    """
    return report.memory.weights + _SENT * _sent(report)


def _sent(report: Report) -> int:
    return sum(collective.nbytes for collective in report.collectives)


def _describe(report: Report) -> str:
    count = sum(collective.count for collective in report.collectives)
    weights = format_bytes(report.memory.weights)
    return f"{count_noun(count, 'collective')} ({format_bytes(_sent(report))}) and {weights} of weights a device"
