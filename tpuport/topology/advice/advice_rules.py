"""What a rule of the advice is, all of them by their files' names, and what they say of
a program.
"""

import dataclasses
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tpuport.base.plurals import count_noun
from tpuport.errors import PortError
from tpuport.hardware import GENERATIONS, Generation
from tpuport.topology.advice.data_movement import count_by_kind
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.compile_report import Finding, Source
from tpuport.topology.hlo import Instruction

_FILE: Final = re.compile(r"tpc\d{3}_")
_SITE: Final = re.compile(r"(?P<file>.+):(?P<line>\d+)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Hit:
    """What a rule has found in a program.

    Attributes:
        message: the measured cause, in a sentence without a full stop.
        remedy: what to write instead, in a sentence without a full stop.
        cost: what it costs a device in a step.
        unit: of the cost: "bytes" of HBM, "bytes sent", "flops" or "seconds".
        source: the line of code, if the evidence has one.
        explained_by: ids of rules that explain it better. If any of them has hits, this
            one is left out.
        rules: all the sharding rules that the remedy proposes, of which its text has
            the largest.
    """

    message: str
    remedy: str
    cost: int | float = 0.0
    unit: str = "bytes"
    source: Source | None = None
    explained_by: frozenset[str] = frozenset()
    rules: Mapping[str, tuple[str | None, ...]] = dataclasses.field(
        default_factory=dict
    )


@dataclasses.dataclass(frozen=True)
class AdviceRule:
    """A rule: findings and a section of docs/compile-advice.md are made from it.

    Attributes:
        id: "TPC001"; never given to another rule, even when this one goes.
        name: kebab-case, written beside the id.
        summary: what it finds, as a phrase without a full stop.
        why: what it costs, and why the compiler cannot avoid it.
        measured: what the evidence is, and where the threshold is.
        before: code that has it, as a user of tpuport writes it, with the names that
            `docs/gen_advice.py` explains.
        after: the same code without it.
        check: the hits in a piece of evidence, most often none.
    """

    id: str
    name: str
    summary: str
    why: str
    measured: str
    before: str
    after: str
    check: Callable[[Evidence], Iterable[Hit]]


@functools.cache
def all_advice_rules() -> tuple[AdviceRule, ...]:
    """Every rule, by id: a file `tpcNNN_name.py` has one `RULE`."""
    # The files are found by their names, so that a new rule is one new file.
    package = importlib.import_module("tpuport.topology.advice")
    names = [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if _FILE.match(module.name)
    ]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return tuple(sorted((module.RULE for module in modules), key=lambda rule: rule.id))


def advice_rule_by_id(id: str) -> AdviceRule:  # noqa: A002 - the field's name
    """The rule with this id or name.

    Raises:
        PortError: there is none.
    """
    # Users see both in the report.
    for rule in all_advice_rules():
        if id.upper() == rule.id or id.lower() == rule.name:
            return rule
    ids = ", ".join(rule.id for rule in all_advice_rules())
    raise PortError(f"there is no advice {id!r}", where="rule", fix=f"one of {ids}")


def advise(evidence: Evidence) -> tuple[Finding, ...]:
    """What all rules find in a program, the costliest first."""
    # Every rule is asked before any hit is left out, as a rule may be explained by one
    # with a later id.
    hits_by_rule = {rule: list(rule.check(evidence)) for rule in all_advice_rules()}
    ids = {rule.id for rule, hits in hits_by_rule.items() if hits}
    findings = [
        Finding(
            rule.id,
            rule.name,
            hit.message,
            hit.remedy,
            float(hit.cost),
            hit.unit,
            _seconds(hit, GENERATIONS[evidence.report.generation]),
            hit.source,
            dict(hit.rules),
        )
        for rule, hits in hits_by_rule.items()
        for hit in hits
        if hit.explained_by.isdisjoint(ids)
    ]
    return tuple(sorted(findings, key=_report_order))


def _seconds(hit: Hit, hardware: Generation) -> float:
    """Seconds of a step that a cost takes alone, at the published peaks of a device."""
    device = hardware.device
    # All links of a chip together, one way.
    links = hardware.ici.value / 2 / hardware.devices
    rates = {
        "bytes": device.hbm_bandwidth,
        "bytes sent": links,
        "flops": device.bf16,
        "seconds": 1.0,
    }
    return hit.cost / rates[hit.unit]


def _report_order(finding: Finding) -> tuple[float, str, str]:
    return -finding.seconds, finding.rule, finding.message


def format_bytes(nbytes: int | float) -> str:
    """As in "1.5 GiB", "3 MiB", "512 KiB", "100 bytes"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        # The other format would write four digits as 1e+03.
        if nbytes >= 999 * scale:
            return f"{nbytes / scale:,.0f} {unit}"
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} bytes"


def format_flops(flops: int | float) -> str:
    """As in "2.5 TFLOP", "3 GFLOP", "100 MFLOP"."""
    for unit, scale in (("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= scale:
            return f"{flops / scale:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"


def describe_collectives(collectives: Iterable[Instruction]) -> str:
    """As in "2 all-gathers, 4 all-to-alls and 1 collective-permute"."""
    *others, last = [
        count_noun(count, kind) for kind, count in count_by_kind(collectives).items()
    ]
    if not others:
        return last
    return f"{', '.join(others)} and {last}"


def parse_source(text: str, function: str = "") -> Source | None:
    """A line of code that is written as "file:line"; None if the text is something
    else.
    """
    match = _SITE.fullmatch(text)
    if match is None:
        return None
    return Source(match["file"], int(match["line"]), function)
