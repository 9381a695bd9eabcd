"""What the linter says about its own work, TPU0xx: files it could not read, suppressions that suppress nothing."""

import dataclasses
import functools
from typing import Final

from tpuport.errors import PortError
from tpuport.lint.findings import Applicability, Finding, Severity


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnostic:
    """A finding that no rule makes.

    Attributes:
        id, name, severity, summary, why, remedy: as those of a rule.
        failure: where it is an error, the linter could not do its work, and the exit code is 2.
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
        """The summary: a diagnostic's findings bring their own sentences."""
        return self.summary


DIAGNOSTICS: Final = (
    Diagnostic(
        "TPU001",
        "syntax-error",
        Severity.ERROR,
        "a file that Python cannot parse",
        "Nothing in such a file is looked at, so nothing can be said of it. The other files are linted as ever, and "
        "the exit code is 2.",
        "correct the syntax, or exclude the file",
        failure=True,
    ),
    Diagnostic(
        "TPU002",
        "unreadable",
        Severity.ERROR,
        "a path that does not exist, or a file or directory that cannot be read or holds nothing to lint",
        "A missing path, an empty directory, bytes that are not of the file's encoding, a device, a file of more than "
        "32 MB, code nested too deeply for Python's parser. The other files are linted as ever, and the exit code is "
        "2. A symbolic link that leads back to a directory above it is only a warning: what is there is linted once.",
        "correct the path, make the file readable, or exclude it",
        failure=True,
    ),
    Diagnostic(
        "TPU003",
        "unused-suppression",
        Severity.WARNING,
        "a `# tpuport: ignore[...]` that suppresses nothing",
        "What it was for is gone, or it stands on another line than the finding. Left there it would hide the next "
        "finding of that kind. Of a suppression that names several rules, only the unused names are told. Rules that "
        "this run did not ask are not missed.",
        "remove the comment, or the ids named",
    ),
    Diagnostic(
        "TPU004",
        "notebook",
        Severity.WARNING,
        "a notebook, which is not linted",
        "Cells hold magics and run in any order, so what is traced cannot be told from the file. In a directory it is "
        "a warning; a notebook named on the command line is an error, and the exit code is 2.",
        "put the model's code into a module and lint that: `jupyter nbconvert --to script` writes one",
        failure=True,
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
        "The analysis raised, its process ended, or a fix gave text that does not parse or a file that cannot be "
        "written. The file is as it was, the others are linted as ever, and the exit code is 2.",
        "exclude the file, and report it as a bug of tpuport with the file's text",
        failure=True,
    ),
)

_BY_ID: Final = {diagnostic.id: diagnostic for diagnostic in DIAGNOSTICS}


def diagnostic(id: str) -> Diagnostic | None:  # noqa: A002 - the field's name
    """The diagnostic with this id or name, or None."""
    named = next((one for one in DIAGNOSTICS if one.name == id.lower()), None)
    return _BY_ID.get(id.upper(), named)


def is_failure(finding: Finding) -> bool:
    """Whether a finding means that the linter could not do its work."""
    known = _BY_ID.get(finding.rule)
    return known is not None and known.failure and finding.severity == Severity.ERROR


def tell(id: str, path: str, reason: str, remedy: str = "", *, line: int = 1, column: int = 1,  # noqa: A002
         end_column: int = 0, severity: Severity | None = None) -> Finding:  # fmt: skip
    """A finding of a diagnostic, with its severity and remedy where no others are given."""
    known = _BY_ID[id]
    return Finding(
        path,
        line,
        column,
        line,
        end_column or column + 1,
        id,
        severity or known.severity,
        reason,
        remedy or known.remedy,
    )


def known_prefixes(prefixes: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The prefixes in capitals.

    Raises:
        PortError: one fits no rule and no diagnostic.
    """
    raised = tuple(prefix.strip().upper() for prefix in prefixes)
    for prefix in raised:
        if prefix != "ALL" and not any(known.startswith(prefix) for known in known_ids()):
            raise PortError(
                f"no rule's id starts with {prefix!r}", where=where, fix="see tpuport lint --list-rules"
            )
    return raised


@functools.cache
def known_ids() -> tuple[str, ...]:
    """Ids of all diagnostics and rules."""
    from tpuport.lint.rules.registry import all_rules

    return (*_BY_ID, *(rule.id for rule in all_rules()))


@functools.cache
def ids_by_name() -> dict[str, str]:
    """Id by name of all diagnostics and rules: `item` is TPU201."""
    from tpuport.lint.rules.registry import all_rules

    return {one.name: one.id for one in (*DIAGNOSTICS, *all_rules())}


def longest(id: str, prefixes: tuple[str, ...]) -> int:  # noqa: A002
    """Length of the longest prefix that fits an id; 0 for ALL, -1 for none."""
    fitting = [
        0 if prefix == "ALL" else len(prefix)
        for prefix in prefixes
        if prefix == "ALL" or id.startswith(prefix)
    ]
    return max(fitting, default=-1)
