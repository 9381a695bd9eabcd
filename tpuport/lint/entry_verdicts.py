"""Which entry points are expected to trace: model classes, and what scripts and tests
define, apart from each other.
"""

import re
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.base.mappings import group_by
from tpuport.base.plurals import count_noun
from tpuport.lint.findings import Finding

_TEST_FILE: Final = re.compile(r"(test_.*|.*_test|conftest)\.py")
_TEST_DIRECTORIES: Final = frozenset({"test", "tests", "testing"})
_SCRIPT_DIRECTORIES: Final = frozenset(
    {"script", "scripts", "example", "examples", "tools", "bin"}
)
_MAIN_BLOCK: Final = re.compile(r"""if\s+__name__\s*==\s*['"]__main__['"]""")


class Stop(NamedTuple):
    """An error that stops an entry point: its key, from `key_of`, and the calls of the
    entry point that have it.
    """

    key: str
    scenario: str = ""


class TracedEntry(NamedTuple):
    """A model class or a compiled function of a file, and the errors that stop its
    trace.

    Attributes:
        name: the class's or function's qualified name.
        line: of its definition.
        stops: the errors.
    """

    name: str
    line: int
    stops: tuple[Stop, ...]


class EntryVerdict(NamedTuple):
    """Whether an entry point is expected to trace.

    Attributes:
        name, line: as in `TracedEntry`; `path`: its file, as the user named it.
        group: "model", "script" or "test".
        errors: the errors that stop it, sorted, each with the calls of this entry point
            that have it; none if it is expected to trace.
        cell: in a notebook, the cell that the line is counted in; else 0.
    """

    name: str
    path: str
    line: int
    group: str
    errors: tuple[Finding, ...]
    cell: int = 0

    @property
    def place(self) -> str:
        """`model.py:12`, or `model.ipynb:cell 3:12`."""
        return (
            f"{self.path}:cell {self.cell}:{self.line}"
            if self.cell
            else f"{self.path}:{self.line}"
        )


def key_of(finding: Finding) -> str:
    """What identifies an error within a run."""
    return f"{finding.path}:{finding.line}:{finding.column}:{finding.rule}"


def group_of(path: str, lines: Iterable[str]) -> str:
    """What a file is: "test" and "script" by its name or directory, a script also by
    its main block.
    """
    parts = Path(path)
    directories = {part.lower() for part in parts.parts[:-1]}
    if _TEST_FILE.fullmatch(parts.name) or directories & _TEST_DIRECTORIES:
        return "test"
    if directories & _SCRIPT_DIRECTORIES or any(map(_MAIN_BLOCK.match, lines)):
        return "script"
    return "model"


def summary_lines(verdicts: Iterable[EntryVerdict], most: int) -> list[str]:
    """The verdicts in words, group by group; of what is not expected to trace the first
    ones by name.
    """
    groups = group_by(verdicts, attrgetter("group"))
    lines: list[str] = []
    for group in filter(groups.get, ("model", "script", "test")):
        members = groups[group]
        stopped = [verdict for verdict in members if verdict.errors]
        what = {
            "model": "models",
            "script": "files that run as scripts",
            "test": "tests",
        }[group]
        traced = len(members) - len(stopped)
        lines.append(
            f"In {what}, {traced:,} of {len(members):,} entry points are expected to trace."
        )
        for verdict in stopped[:most]:
            first = verdict.errors[0]
            count = count_noun(len(verdict.errors), "error")
            first_error = f"{first.rule} in {first.place}"
            lines.append(
                f"  not {verdict.name} ({verdict.place}): {count}, first {first_error}"
            )
        if len(stopped) > most:
            lines.append(
                f"  and {len(stopped) - most:,} more, which --format json lists"
            )
    return lines
