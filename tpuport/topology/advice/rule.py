"""What a rule of the advice is."""

import dataclasses
from collections.abc import Callable, Iterable

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.compile_report import Source


@dataclasses.dataclass(frozen=True)
class Hit:
    """A rule's yes: what was measured, and what to do about it here.

    Attributes:
        message: the measured cause, in a sentence without a full stop.
        remedy: what to write instead, in a sentence without a full stop.
        cost, unit: what it costs a device in a step: "bytes" of HBM, "bytes sent" or "flops".
        source: the line of code, where the evidence has one.
    """

    message: str
    remedy: str
    cost: int | float = 0.0
    unit: str = "bytes"
    source: Source | None = None


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule: what findings and the page are made from.

    Attributes:
        id: "TPC001"; never given to another rule, even when this one goes.
        name: kebab-case, said beside the id.
        summary: what it finds, as a phrase without a full stop.
        why: what it costs, and why the compiler cannot help it.
        measured: what the evidence is, and where the threshold is.
        before, after: code that has it and code that has not, as a user of tpuport writes it.
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
