"""What an editor offers at a finding: its fix, a comment that suppresses it, and all
safe fixes of the file.
"""

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from lsprotocol import types

from tpuport.lint.diagnostics import is_diagnostic
from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.fixing import rewrite_text
from tpuport.lint.ignoring import text_with_ignores
from tpuport.server.project_analysis import ProjectAnalysis

FIX_ALL: Final = "source.fixAll.tpuport"


class Change(enum.StrEnum):
    """What an action does with a file."""

    FIX = "fix"
    FIX_ALL = "fix-all"
    SUPPRESS = "suppress"


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """An action before its text is computed, which takes time and is seldom wanted.

    Attributes:
        change: what it does.
        title: as the editor shows it.
        finding: what it is about; None for the whole file.
        is_preferred: whether the editor may apply it without a choice.
    """

    change: Change
    title: str
    finding: Finding | None = None
    is_preferred: bool = False

    @property
    def kind(self) -> str:
        """The protocol's kind of action."""
        return (
            FIX_ALL if self.change is Change.FIX_ALL else types.CodeActionKind.QuickFix
        )


def offers_at(
    project: ProjectAnalysis, file: Path, findings: Iterable[Finding]
) -> list[Offer]:
    """The actions for some findings of a file."""
    offers: list[Offer] = []
    exact_fixes: dict[Finding, Applicability] = {}
    for finding in findings:
        exact_fixes = exact_fixes or project.exact_fixes(file)
        match exact_fixes.get(finding):
            case Applicability.SAFE:
                offers.append(
                    Offer(
                        Change.FIX,
                        f"tpuport: fix {finding.rule}",
                        finding,
                        is_preferred=True,
                    )
                )
            case Applicability.UNSAFE:
                title = f"tpuport: rewrite {finding.rule} (unsafe: look at the result)"
                offers.append(Offer(Change.FIX, title, finding))
        # Nothing suppresses what is said about the linter's own work.
        if not is_diagnostic(finding):
            title = f"tpuport: disable {finding.rule} for this line"
            offers.append(Offer(Change.SUPPRESS, title, finding))
    return offers


def is_wanted(kind: str, only: Sequence[str] | None) -> bool:
    """Whether a client that asks for some kinds of actions wants this one: `source`
    includes `source.fixAll`.
    """
    if only is None:
        return True
    return any(kind == wanted or kind.startswith(f"{wanted}.") for wanted in only)


def changed_text(
    project: ProjectAnalysis, file: Path, change: Change, finding: Finding | None
) -> str:
    """A file's text after an action."""
    text = project.text(str(file))
    if change is Change.FIX_ALL:
        return project.fixed_text(file)
    assert finding is not None
    if change is Change.SUPPRESS:
        return text_with_ignores(text, [finding])
    fixed, _ = rewrite_text(text, [finding], True)
    return fixed


def finding_key(finding: Finding | None) -> list[Any] | None:
    """What identifies a finding among those of its file, as JSON."""
    return None if finding is None else [finding.rule, finding.line, finding.column]
