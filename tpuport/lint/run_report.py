"""The report of a run: its findings and figures, and whether the model is expected to
trace.
"""

import collections
import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tpuport.base.plurals import count_noun
from tpuport.lint.diagnostics import is_failure
from tpuport.lint.entry_verdicts import EntryVerdict
from tpuport.lint.findings import Applicability, Finding, Severity

_LIBRARY_DIRECTORIES: Final = frozenset({"site-packages", "dist-packages"})


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A run's findings and figures.

    Attributes:
        findings: sorted, in the linted files, after suppressions, severities and
            baseline; paths as the user wrote them.
        files: number of files, including those that could not be read.
        lines: number of lines in these.
        entry_points: number of forwards and compiled functions that tracing starts
            from.
        traced: number of functions that tracing reaches, in any file.
        unmatched_entry_points: patterns of the settings that match no function of the
            linted files.
        stops: number of findings that stop a trace, whatever severity the settings give
            them, including those in the baseline.
        passable: number of findings at error level that do not stop a trace.
        outside: errors that stop a trace, in files that were not named but are traced
            from those that were.
        failing_outside: those of `outside`, in files of the project itself, that would
            be reported as errors if their files were named; they fail the run.
        suppressed: number of findings that comments suppress.
        known: number of findings that are in the baseline.
        stale: number of entries of the baseline that no longer occur.
        unasked: the rule of each error that stops a trace although the rule is not
            selected; all rules always run.
        exact_fixes: `fix` of each finding was determined from the code at its position;
            otherwise it is the best that the rule can do anywhere.
        verdicts: for each model class and compiled function, by file and line.
        fixed: by file, as the user wrote it, the number of rewritten findings.
        diffs: by file, the unified diff of the rewrites.
        texts: by file, the rewritten text.
        cached: number of files whose results came from the cache.
        seconds: wall time.
        source: returns the lines that a finding's line is counted in: those of its
            file, or of its cell in a notebook.
        fingerprint: returns a string that identifies a finding even after its line has
            moved.
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
    failing_outside: tuple[Finding, ...]
    suppressed: int
    known: int
    stale: int
    unasked: tuple[str, ...]
    exact_fixes: bool
    verdicts: tuple[EntryVerdict, ...]
    fixed: dict[str, int]
    diffs: dict[str, str]
    texts: dict[str, str]
    cached: int
    seconds: float
    source: Callable[[Finding], Sequence[str]]
    fingerprint: Callable[[Finding], str]

    @property
    def errors(self) -> int:
        """Number of findings at error level."""
        return self.count(Severity.ERROR)

    @property
    def failed(self) -> bool:
        """Whether something could not be linted."""
        return any(map(is_failure, self.findings))

    @property
    def exit_code(self) -> int:
        """0 without errors, 1 with errors, 2 if something could not be linted.

        Errors in other files of the project, which these call, count too: the verdict
        names them.
        """
        # Even with errors elsewhere: what could not be linted may have more.
        if self.failed:
            return 2
        return int(self.errors > 0 or bool(self.failing_outside))

    @property
    def expected_to_trace(self) -> bool:
        """Whether something is traced, all of it could be read, and no error in it
        stops the trace.
        """
        # A file that could not be read may contain anything.
        obstacles = (
            self.failed,
            self.stops,
            self.unasked,
            self._errors_outside_libraries,
        )
        return self.entry_points > 0 and not any(obstacles)

    @property
    def _errors_outside_libraries(self) -> list[Finding]:
        """Errors in the project's own other files: the model need not run the code of a
        library that has one.
        """
        return list(itertools.filterfalse(is_in_library, self.outside))

    def count(self, severity: Severity) -> int:
        """Number of findings with a severity."""
        return self._count_by(operator.attrgetter("severity"))[severity]

    def fixable(self, applicability: Applicability) -> int:
        """Number of findings that `--fix` can rewrite (SAFE), or only `--unsafe-fixes`
        (UNSAFE).
        """
        return self._count_by(operator.attrgetter("fix"))[applicability]

    def by_rule(self) -> dict[str, int]:
        """Number of findings by rule id, in the order of ids."""
        return dict(sorted(self._count_by(operator.attrgetter("rule")).items()))

    def by_family(self) -> dict[str, int]:
        """Number of findings by family, named by the start of its ids."""
        return dict(sorted(self._count_by(lambda finding: finding.rule[:4]).items()))

    def _count_by(self, key: Callable[[Finding], Any]) -> collections.Counter[Any]:
        return collections.Counter(map(key, self.findings))

    def verdict(self) -> str:
        """Whether the model is expected to trace, and why, in one sentence."""
        # The order is one of certainty: an error in the linted files comes before one
        # elsewhere.
        if self.failed:
            failures = sum(map(is_failure, self.findings))
            return f"Whether it traces is not known: {count_noun(failures, 'path')} could not be linted."
        if self.stops:
            return self._verdict_on_stops()
        if self.unasked:
            return f"Not expected to trace: {self._describe_unselected()}."
        if not self.entry_points:
            return self._verdict_on_nothing()
        if outside := self._errors_outside_libraries:
            first = outside[0]
            return (
                f"Not expected to trace: {count_noun(len(outside), 'error')} in files that were not named, "
                f"which these call: the first is {first.rule} in {first.place}."
            )
        # The settings may make an error of a finding that does not stop the trace.
        error = "error that stops it" if self.errors else "error"
        return f"Expected to trace: no {error} in the {self._describe_reach()}.{self._library_remark()}"

    def _verdict_on_stops(self) -> str:
        errors = count_noun(self.stops, "error")
        if (
            self.verdicts
            and not any(verdict.errors for verdict in self.verdicts)
            and not self.unasked
        ):
            # A script around a model that is fine.
            return (
                f"Not expected to run: {errors} in code around the {self._describe_reach()}, "
                "in which nothing stops the trace."
            )
        verdict = f"Not expected to trace: {errors} "
        if self.entry_points:
            verdict += f"in or before the {self._describe_reach()}"
        else:
            verdict += "before anything is traced"
        if self.unasked:
            verdict += f", and {self._describe_unselected()}"
        return f"{verdict}."

    def _verdict_on_nothing(self) -> str:
        reason = "no nn.Module has a forward, nothing is compiled, and no entry point"
        # A pattern that matches nothing is a mistake in the settings.
        if self.unmatched_entry_points:
            return f"Nothing in these files is traced: {reason} of the settings is in them."
        return f"Nothing in these files is traced: {reason} is set."

    def _describe_reach(self) -> str:
        functions = count_noun(self.traced, "function")
        return f"{functions} traced from {count_noun(self.entry_points, 'entry point')}"

    def _describe_unselected(self) -> str:
        # Each rule once, in order.
        rules = ", ".join(dict.fromkeys(self.unasked))
        return f"{count_noun(len(self.unasked), 'error')} of rules that were not asked for ({rules})"

    def _library_remark(self) -> str:
        if not self.outside:
            return ""
        first = self.outside[0]
        return (
            f" Not counted: {count_noun(len(self.outside), 'error')} in installed libraries that it may call, "
            f"the first {first.rule} in {first.place}."
        )


def is_in_library(finding: Finding) -> bool:
    """Whether a finding is in an installed package."""
    return not _LIBRARY_DIRECTORIES.isdisjoint(Path(finding.path).parts)
