"""What the linter finds where tracing failed."""

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tpuport.lint import source, workers
from tpuport.lint.configuration import Settings
from tpuport.lint.findings import Finding, Severity
from tpuport.topology.failures.frames import Frame


class Span(NamedTuple):
    """Lines from the first to the last, both in it."""

    first: int
    last: int


def findings(files: Iterable[str], entry_points: tuple[str, ...] = ()) -> list[Finding]:
    """What the linter finds from these files on, suppressed or not; nothing of a file that cannot be read.

    Args:
        files: as tracebacks name them, cells of notebooks too.
        entry_points: functions that are traced, beside those that the linter takes for it: "module:Class.method".
    """
    found: dict[Finding, None] = {}
    with _recursion(), _cells(files):
        analyser = workers.make_analyser(Settings(entry_points=entry_points))
        for file in dict.fromkeys(files):
            result = workers.analyse_file(analyser, _absolute(file))
            found.update(dict.fromkeys(() if result.failed else result.findings))
    return list(found)


def at(frame: Frame, all_findings: Iterable[Finding], rules: tuple[str, ...]) -> Finding | None:
    """The finding that is about the expression of a frame, else about its statement.

    Args:
        frame: where tracing failed.
        all_findings: from which to choose.
        rules: how the ids start of those that will do; only errors that stop a trace do.
    """
    path, span = _absolute(frame.file), statement(frame)
    fitting = [
        finding
        for finding in all_findings
        if finding.path == path
        and finding.line <= span.last
        and finding.end_line >= span.first
        and finding.rule.startswith(rules)
        and _stops(finding)
    ]
    return min(fitting, key=lambda finding: _distance(frame, finding), default=None)


def statement(frame: Frame) -> Span:
    """The lines of the innermost statement around a frame's line; of one with a body, those of its head."""
    spans = [span for span in _statements(frame.file) if span.first <= frame.line <= span.last]
    return min(spans, key=lambda span: span.last - span.first, default=Span(frame.line, frame.end_line))


def _stops(finding: Finding) -> bool:
    return finding.severity == Severity.ERROR and finding.stops


def _distance(frame: Frame, finding: Finding) -> tuple[int, int]:
    """How far a finding is from a frame's expression: in lines, then in columns."""
    lines = abs(finding.line - frame.line) + abs(finding.end_line - frame.end_line)
    if frame.column is None or frame.end_column is None:
        return lines, 0
    first = _characters(frame.file, frame.line, frame.column)
    last = _characters(frame.file, frame.end_line, frame.end_column)
    return lines, abs(finding.column - 1 - first) + abs(finding.end_column - 1 - last)


def _characters(file: str, line: int, column: int) -> int:
    """A column in characters: Python counts bytes."""
    return len(linecache.getline(file, line).encode()[:column].decode(errors="replace"))


@functools.lru_cache(16)
def _parsed(file: str, text: str) -> ast.Module | None:
    try:
        return source.parse(text, Path(_absolute(file)), file).tree
    except source.Unreadable:
        return None


def tree(file: str) -> ast.Module | None:
    """The syntax of a file, as tracebacks name it; None where it cannot be read."""
    return _parsed(file, "".join(linecache.getlines(file)))


def _statements(file: str) -> Iterator[Span]:
    parsed = tree(file)
    for node in ast.walk(parsed) if parsed else ():
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            inside = [
                one.lineno
                for name in ("body", "handlers", "cases")
                for one in getattr(node, name, ())
                if hasattr(one, "lineno")
            ]
            # A body on the line of its head is in the head's span.
            last = max(first, min(inside) - 1) if inside else node.end_lineno or node.lineno
            yield Span(first, last)


def _absolute(file: str) -> str:
    return str(Path(file).absolute())


@contextlib.contextmanager
def _cells(files: Iterable[str]) -> Iterator[None]:
    """Let the linter read what is no file and Python knows the text of: a notebook's cells."""
    added = [
        path
        for file in files
        if not (path := Path(_absolute(file))).exists() and linecache.getlines(file)
        if source.overlay.setdefault(path, "".join(linecache.getlines(file)))
    ]
    try:
        yield
    finally:
        for path in added:
            source.overlay.pop(path, None)


@contextlib.contextmanager
def _recursion() -> Iterator[None]:
    """Keep the limit: the analysis raises it, because what it follows may be deep."""
    before = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
