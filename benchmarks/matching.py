"""Holds a linter's errors against what was observed, statement by statement."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.watch import COUNTED, Extent, partial


class Finding(Protocol):
    """What is read of a linter's finding; lines and columns count from 1, `end_line` is the last."""

    path: Any
    line: int
    column: int
    end_line: int
    rule: str
    severity: str
    scenario: str


class Subject(NamedTuple):
    """What is compared: errors of these rules with lines that are noted for these families of kinds."""

    rules: tuple[str, ...]
    kinds: tuple[str, ...]


# Data-dependent shapes and concrete values; tensors of the host beside tensors of the device.
VALUES = Subject(("TPU1", "TPU2"), COUNTED)
PLACES = Subject(("TPU313",), ("host",))


class Span(NamedTuple):
    """The lines of a simple statement, or of a compound statement's header; both ends belong to it."""

    start: int
    end: int


class Place(NamedTuple):
    """A line of a file, and what there is to say of it."""

    path: str
    line: int
    what: str


@dataclass
class Score:
    """The tally of one comparison.

    Attributes:
        hits: Watched lines whose statement carries an error.
        misses: Watched lines whose statement carries none.
        right: Errors on statements that ran and hold a watched line.
        wrong: Errors on statements that ran and hold none.
        idle: How many errors stand on statements or in parts of them that never ran (a lambda, a side of a condition),
            or belong to calls with an argument that no call passed: nothing is known of them.
    """

    hits: list[Place] = field(default_factory=list)
    misses: list[Place] = field(default_factory=list)
    right: list[Place] = field(default_factory=list)
    wrong: list[Place] = field(default_factory=list)
    idle: int = 0

    @property
    def recall(self) -> float:
        """The share of watched lines that carry an error, from 0 to 1."""
        return share(self.hits, self.misses)

    @property
    def precision(self) -> float:
        """The share of errors on statements that ran which are watched, from 0 to 1."""
        return share(self.right, self.wrong)


def share(part: list[Place], rest: list[Place]) -> float:
    """How much of both lists is in the first; 1 if both are empty."""
    return len(part) / (len(part) + len(rest)) if part or rest else 1.0


def spans(source: str) -> dict[int, Span]:
    """From line to the innermost simple statement, or compound statement's header, that holds it.

    Raises:
        SyntaxError: If `source` is not Python.
    """
    found: dict[int, Span] = {}
    for statement in statements(ast.parse(source)):
        end = statement.end_lineno or statement.lineno
        if body := getattr(statement, "body", None) or getattr(statement, "cases", None):
            first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
            decorators = getattr(first, "decorator_list", None)
            end = max(statement.lineno, (decorators[0] if decorators else first).lineno - 1)
        span = Span(statement.lineno, end)
        found |= dict.fromkeys(range(span.start, span.end + 1), span)
    return found


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a tree, those that hold others before those that they hold."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def counted(
    file: dict[str, Any], without: Iterable[str] = (), subject: Subject = VALUES
) -> dict[int, list[str]]:
    """The lines of an observed file that no traced program can run, with their kinds; kinds of `without` left out."""
    kept = {}
    for line, note in file["notes"].items():
        kinds = [
            kind for kind in note["kinds"] if kind.split(":")[0] in subject.kinds and kind not in without
        ]
        if kinds:
            kept[int(line)] = kinds
    return kept


def score(
    files: dict[str, Any],
    findings: Iterable[Finding],
    without: Iterable[str] = (),
    subject: Subject = VALUES,
) -> Score:
    """Compare the errors with the observation.

    Args:
        files: The observed files: by path, the lines that ran and the notes.
        findings: The linter's; only errors of the subject's rules are looked at, and only in these files.
        without: Kinds of note that are left out: lines with no others count neither for nor against.

    Returns:
        The tally.
    """
    tally, by_path = Score(), {path: [] for path in files}
    for finding in findings:
        path = str(Path(finding.path).resolve())
        if path in by_path and finding.severity == "error" and finding.rule.startswith(subject.rules):
            by_path[path].append(finding)
    for path, mine in by_path.items():
        compare(path, files[path], mine, set(without), tally, subject)
    return tally


def compare(
    path: str,
    file: dict[str, Any],
    findings: list[Finding],
    without: set[str],
    tally: Score,
    subject: Subject,
) -> None:
    """Add one file's comparison to the tally."""
    source = Path(path).read_text(encoding="utf-8")
    where = spans(source)
    lines = source.splitlines()
    parts = partial(ast.parse(source))
    watched = counted(file, without, subject)
    wanted = {span_of(where, line) for line in watched}
    left_out = {span_of(where, line) for line in counted(file, subject=subject)} - wanted
    ran = {span_of(where, line) for line in file["ran"]}
    flagged = {span_of(where, finding.line) for finding in findings}
    for line, kinds in sorted(watched.items()):
        into = tally.hits if span_of(where, line) in flagged else tally.misses
        into.append(Place(path, line, f"{','.join(kinds)}: {lines[line - 1].strip()}"))
    for finding in sorted(findings, key=lambda one: one.line):
        span = span_of(where, finding.line)
        place = Place(path, finding.line, f"{finding.rule}: {lines[finding.line - 1].strip()}")
        if span in wanted:
            tally.right.append(place)
        elif span not in ran or _needs_other_call(finding, file) or _is_in_idle_part(finding, parts, file):
            tally.idle += 1
        elif span not in left_out:
            tally.wrong.append(place)


def _needs_other_call(finding: Finding, file: dict[str, Any]) -> bool:
    """Whether a finding belongs to calls with an argument that no observed call has passed."""
    argument = re.search(r"(with|as) `(\w+)`(, without .*)?$", finding.scenario)
    return argument is not None and "passed" in file and argument[2] not in file["passed"]


def _is_in_idle_part(finding: Finding, parts: list[Extent], file: dict[str, Any]) -> bool:
    """Whether a finding lies in a part of a statement that never ran; older observations do not tell."""
    place = Extent(finding.line, finding.column - 1, finding.line, finding.column - 1)
    ran = [Extent(*code) for code in file.get("parts", ())]
    return "parts" in file and any(part.holds(place) and not any(map(part.holds, ran)) for part in parts)


def span_of(where: dict[int, Span], line: int) -> Span:
    """The statement of a line; a line of its own where there is none."""
    return where.get(line, Span(line, line))
