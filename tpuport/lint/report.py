"""What a run found out."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tpuport.lint.diagnostics import is_failure
from tpuport.lint.findings import Applicability, Finding, Severity

_LIBRARIES: Final = frozenset({"site-packages", "dist-packages"})


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A run's findings and figures.

    Attributes:
        findings: sorted, in the files named, after suppressions, severities and baseline; paths as the user sees them.
        files: files linted; those that could not be read too.
        lines: lines of these.
        entry_points: forwards and compiled functions that tracing starts from.
        traced: functions that it reaches, in whatever files.
        unmatched_entry_points: patterns of the settings that fit no function of the files linted.
        stops: number of findings that stop a trace, whatever severity the settings give them; those of the baseline
            too.
        passable: findings at error level that do not stop a trace.
        outside: errors that stop a trace in files that were not named, in code that is traced from those that were.
        suppressed: findings that comments suppress.
        known: findings that the baseline holds.
        stale: entries of the baseline that no longer occur.
        unasked: the rule of each error that stops a trace and was not asked for; all rules run in any case.
        exact_fixes: it was looked at each place whether it can be rewritten; else a finding says what its rule can do.
        fixed: by file, as the user sees it, how many places were rewritten.
        diffs: by file, the unified diff of what was rewritten.
        cached: files whose results came out of the cache.
        seconds: wall time.
        source: a file's lines, by the path in a finding.
        fingerprint: what a finding is recognised by when lines move.
    """

    findings: tuple[Finding, ...]
    files: int
    lines: int
    entry_points: int
    traced: int
    unmatched_entry_points: tuple[str, ...]
    stops: int
    passable: int
    outside: tuple[Finding, ...]
    suppressed: int
    known: int
    stale: int
    unasked: tuple[str, ...]
    exact_fixes: bool
    fixed: dict[str, int]
    diffs: dict[str, str]
    cached: int
    seconds: float
    source: Callable[[str], Sequence[str]]
    fingerprint: Callable[[Finding], str]

    @property
    def errors(self) -> int:
        """Findings at error level."""
        return self.count(Severity.ERROR)

    @property
    def failed(self) -> bool:
        """Whether something could not be linted."""
        return any(is_failure(finding) for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 for no error, 1 for errors, 2 where something could not be linted."""
        return 2 if self.failed else int(self.errors > 0)

    @property
    def expected_to_trace(self) -> bool:
        """Whether something is traced, all of it was read, and nothing in it was found to stop a trace."""
        return self.entry_points > 0 and not (
            self.failed or self.stops or self.unasked or self._outside_libraries
        )

    @property
    def _outside_libraries(self) -> list[Finding]:
        """Errors in the code's own other files. Installed libraries have ways that this code need not take."""
        return [one for one in self.outside if not _LIBRARIES.intersection(Path(one.path).parts)]

    def count(self, severity: Severity) -> int:
        """How many findings have a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def fixable(self, applicability: Applicability) -> int:
        """How many findings `--fix`, or `--unsafe-fixes` beyond it, may rewrite."""
        return sum(finding.fix == applicability for finding in self.findings)

    def by_rule(self) -> dict[str, int]:
        """How many findings each rule has, by id."""
        counted = collections.Counter(finding.rule for finding in self.findings)
        return dict(sorted(counted.items()))

    def by_family(self) -> dict[str, int]:
        """How many findings each family has, by the start of its ids."""
        counted = collections.Counter(finding.rule[:4] for finding in self.findings)
        return dict(sorted(counted.items()))

    def verdict(self) -> str:
        """Whether the model is expected to trace, and why, in one sentence."""
        reached = (
            f"{counted(self.traced, 'function')} traced from {counted(self.entry_points, 'entry point')}"
        )
        if self.failed:
            number = sum(is_failure(finding) for finding in self.findings)
            return f"Whether it traces is not known: {counted(number, 'path')} could not be linted."
        if self.stops:
            where = f"in or before the {reached}" if self.entry_points else "before anything is traced"
            more = f", and {self._unasked()}" if self.unasked else ""
            return f"Not expected to trace: {counted(self.stops, 'error')} {where}{more}."
        if self.unasked:
            return f"Not expected to trace: {self._unasked()}."
        if not self.entry_points:
            entry = "of the settings is in them" if self.unmatched_entry_points else "is set"
            return (
                "Nothing in these files is traced: no nn.Module has a forward, nothing is compiled, "
                f"and no entry point {entry}."
            )
        if outside := self._outside_libraries:
            first = outside[0]
            return (
                f"Not expected to trace: {counted(len(outside), 'error')} in files that were not named, "
                f"which these call: the first is {first.rule} in {first.path}:{first.line}."
            )
        lenient = "that stops it " if self.errors else ""
        return f"Expected to trace: no error {lenient}in the {reached}.{self._libraries()}"

    def _unasked(self) -> str:
        rules = ", ".join(dict.fromkeys(self.unasked))
        return f"{counted(len(self.unasked), 'error')} of rules that were not asked for ({rules})"

    def _libraries(self) -> str:
        if not self.outside:
            return ""
        first = self.outside[0]
        return (
            f" Not counted: {counted(len(self.outside), 'error')} in installed libraries that it may call, "
            f"the first {first.rule} in {first.path}:{first.line}."
        )


def counted(number: int, noun: str) -> str:
    """`1 error`, `1,234 errors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
