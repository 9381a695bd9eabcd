"""What interpreting a call resulted in, which an equal call takes instead of being
interpreted again.
"""

import dataclasses
from typing import Any

from tpuport.lint.abstract_values import UNKNOWN, Value
from tpuport.lint.findings import Finding
from tpuport.lint.interpreter.masked_reads import MaskedRead
from tpuport.lint.modules import ClassInfo, FunctionInfo


@dataclasses.dataclass
class Record:
    """What interpreting a call, or a file, resulted in.

    Attributes:
        result: the call's value.
        receiver: the object that a method was called on, as the method leaves it; None
            if the call leaves it as it was.
        findings: by rule and position.
        reads: those by masks that have started in the call; asked_reads: those from
            elsewhere of which it asks for the number of elements.
        traced: the functions that were traced, the called one among them, each with the
            class of the object that it was called on, or None.
        consulted: files whose functions were interpreted.
        lost: a tensor in one branch and a Python object in another left nothing known
            somewhere.
    """

    result: Value = UNKNOWN
    receiver: Value | None = None
    findings: dict[tuple[Any, ...], Finding] = dataclasses.field(default_factory=dict)
    traced: set[tuple[FunctionInfo, ClassInfo | None]] = dataclasses.field(
        default_factory=set
    )
    consulted: set[str] = dataclasses.field(default_factory=set)
    lost: bool = False
    reads: set[MaskedRead] = dataclasses.field(default_factory=set)
    asked_reads: set[MaskedRead] = dataclasses.field(default_factory=set)

    def add(self, key: tuple[Any, ...], finding: Finding) -> None:
        """Add a finding; of two with the same key the worse stays, or the one that
        needs no special call.
        """
        known = self.findings.setdefault(key, finding)
        if finding.severity.rank < known.severity.rank or (
            finding.severity == known.severity and not finding.scenario
        ):
            self.findings[key] = finding

    def ask(self, read: MaskedRead) -> None:
        """Count the findings of a read if it has started here; else wherever it has."""
        if read not in self.reads:
            self.asked_reads.add(read)
            return
        for finding in read.findings:
            self.add(finding.key, finding)

    def absorb(self, inner: "Record") -> None:
        """Add everything that a call inside this one resulted in."""
        for key, finding in inner.findings.items():
            self.add(key, finding)
        self.traced |= inner.traced
        self.consulted |= inner.consulted
        self.lost |= inner.lost
        self.reads |= inner.reads
        for read in inner.asked_reads:
            self.ask(read)
