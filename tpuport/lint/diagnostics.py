"""Findings about the linter's own work, TPU0xx: files it could not read, suppressions
that suppress nothing.
"""

import dataclasses
from typing import Final

from tpuport.lint.findings import Applicability, Finding, Severity


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnostic:
    """A kind of finding that the linter itself reports, not a rule.

    Attributes:
        id, name, severity, summary, why, remedy: as those of a rule.
        failure: at error level it means that the linter could not do its work, and the
            exit code is 2.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    remedy: str
    failure: bool = False
    fix: Applicability = Applicability.NONE

    @property
    def reason(self) -> str:
        """The summary: each finding of a diagnostic has its own sentence."""
        return self.summary


DIAGNOSTICS: Final = (
    Diagnostic(
        "TPU001",
        "syntax-error",
        Severity.ERROR,
        "a file that Python cannot parse",
        "Nothing in such a file can be analysed. The other files are linted as usual, and the exit code is 2.",
        "correct the syntax, or exclude the file",
        failure=True,
    ),
    Diagnostic(
        "TPU002",
        "unreadable",
        Severity.ERROR,
        "a path that does not exist, or a file or directory that cannot be read or contains nothing to lint",
        "A missing path, an empty directory, bytes that do not fit the file's encoding, a device, a file of more than "
        "32 MB, code nested too deeply for Python's parser. The other files are linted as usual, and the exit code is "
        "2. A symbolic link that leads back to a directory above it is only a warning: each file is linted once.",
        "correct the path, make the file readable, or exclude it",
        failure=True,
    ),
    Diagnostic(
        "TPU003",
        "unused-suppression",
        Severity.WARNING,
        "a `# tpuport: ignore[...]` that suppresses nothing",
        "The finding it was written for is gone, or the comment is on another line than the finding. Left there it "
        "would hide the next finding of that kind. If a suppression names several rules, only the unused ones are "
        "reported. A rule that is not selected in this run does not count as unused.",
        "remove the comment, or the ids named",
    ),
    Diagnostic(
        "TPU004",
        "notebook",
        Severity.WARNING,
        "a notebook in another language, which is not linted",
        "The notebook's metadata say that its kernel does not run Python. Nothing in it can be traced.",
        "exclude the notebook",
    ),
    Diagnostic(
        "TPU005",
        "invalid-suppression",
        Severity.WARNING,
        "a `# tpuport:` comment that names no rule, an unknown one, or cannot be read",
        "It suppresses nothing: a suppression names the rules it is for, so that it hides no other finding.",
        "write `# tpuport: ignore[TPU101] why this is all right`",
    ),
    Diagnostic(
        "TPU006",
        "internal-error",
        Severity.ERROR,
        "a file on which the linter itself failed, or a fix that could not be written",
        "The analysis raised, its process ended, or a fix produced text that does not parse or a file that cannot be "
        "written. The file is unchanged, the others are linted as usual, and the exit code is 2.",
        "exclude the file, and report it as a bug of tpuport with the file's text",
        failure=True,
    ),
    Diagnostic(
        "TPU007",
        "work-limit",
        Severity.ERROR,
        "a file whose analysis takes more work than a file may",
        "Some code takes the analysis time or memory that grows without bound: functions that call each other in ever "
        "new ways, thousands of branches in one function, a table of half a million numbers. Limits are counts, not "
        "times, and lie far above what any model needs. A file of more tokens is not looked at; of a file that is cut "
        "off later, the findings so far are reported, and none of its entry points counts as expected to trace. The "
        "other files are linted as usual, and the exit code is 2.",
        "split the function or the file, or exclude the file",
        failure=True,
    ),
)

DIAGNOSTIC_BY_ID: Final = {diagnostic.id: diagnostic for diagnostic in DIAGNOSTICS}

_FAILURES: Final = frozenset(
    diagnostic.id for diagnostic in DIAGNOSTICS if diagnostic.failure
)

# A file with one of these has not been analysed, or not all of it. No selection of
# rules may hide that.
ALWAYS_ENABLED: Final = frozenset({"TPU001", "TPU002", "TPU006", "TPU007"})

# No rule's id starts like this, every diagnostic's does.
DIAGNOSTIC_PREFIX: Final = "TPU0"


def is_failure(finding: Finding) -> bool:
    """Whether a finding means that the linter could not do its work."""
    # A warning, about a link that leads in a circle for instance, leaves nothing out
    # that the user asked for.
    return finding.rule in _FAILURES and finding.severity == Severity.ERROR


def is_diagnostic(finding: Finding) -> bool:
    """Whether a finding is about the linter's own work."""
    return finding.rule.startswith(DIAGNOSTIC_PREFIX)


def make_finding(
    id: str,  # noqa: A002 - the field's name
    path: str,
    reason: str,
    remedy: str = "",
    *,
    line: int = 1,
    column: int = 1,
    end_column: int = 0,
    severity: Severity | None = None,
) -> Finding:
    """A finding of a diagnostic; its severity and remedy are the diagnostic's unless
    the caller passes others.
    """
    diagnostic = DIAGNOSTIC_BY_ID[id]
    return Finding(
        path=path,
        line=line,
        column=column,
        end_line=line,
        end_column=end_column or column + 1,
        rule=id,
        severity=severity or diagnostic.severity,
        reason=reason,
        remedy=remedy or diagnostic.remedy,
    )
