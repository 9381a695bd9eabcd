"""`--add-ignore`: a comment on each line with a finding, so that only new findings are
reported from then on.
"""

import collections
import dataclasses
import io
import itertools
import re
import tokenize
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Final

from tpuport.base.mappings import group_by
from tpuport.errors import PortError
from tpuport.lint import source
from tpuport.lint.diagnostics import is_diagnostic
from tpuport.lint.findings import Finding
from tpuport.lint.notebooks import CellPosition, Notebook
from tpuport.lint.paths import write_atomically

_IGNORE: Final = re.compile(r"#\s*tpuport:\s*ignore\s*\[(?P<ids>[^\]]*)\]")
# Tokens that stand for no text of a statement.
_LAYOUT: Final = frozenset(
    {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
)


def add_ignores(findings: Iterable[Finding]) -> dict[str, int]:
    """Write the comments; the number of findings that they suppress, by file.

    Args:
        findings: with paths that can be opened. Those about the linter itself, such as
            unreadable files, are left.

    Raises:
        PortError: a file cannot be written; those before it are.
    """
    written = itertools.filterfalse(is_diagnostic, findings)
    by_file = group_by(written, attrgetter("path"))
    for path, of_file in by_file.items():
        _rewrite(Path(path), of_file)
    return {path: len(of_file) for path, of_file in by_file.items()}


def _rewrite(path: Path, findings: Iterable[Finding]) -> None:
    try:
        text, encoding = source.decode(path.read_bytes(), str(path))
        notebook = source.notebook_of(text, path, str(path))
        if notebook is None:
            changed = text_with_ignores(text, findings)
        else:
            moved = [_in_module(finding, notebook) for finding in findings]
            changed = notebook.with_module(text_with_ignores(notebook.module, moved))
        write_atomically(path, changed.encode(encoding))
    except OSError as error:
        raise PortError(
            f"the comments cannot be written: {error.strerror}",
            where=str(path),
            fix="make the file writable",
        ) from None


def _in_module(finding: Finding, notebook: Notebook) -> Finding:
    line = notebook.module_line(CellPosition(finding.cell, finding.line))
    return dataclasses.replace(finding, line=line, cell=0)


def text_with_ignores(text: str, findings: Iterable[Finding]) -> str:
    """A file's text with a comment at the end of each line that has a finding, or of
    its statement's last line.
    """
    lines = text.split("\n")
    ends = _last_lines_of_statements(text)
    rules: dict[int, set[str]] = collections.defaultdict(set)
    for finding in findings:
        rules[ends.get(finding.line, finding.line)].add(finding.rule)
    for number, ids in rules.items():
        lines[number - 1] = _line_with_ignore(lines[number - 1], ids)
    return "\n".join(lines)


def _line_with_ignore(line: str, ids: set[str]) -> str:
    # A carriage return stays at the end.
    body = line.rstrip("\r")
    match = _IGNORE.search(body)
    if match is None:
        comment = f"# tpuport: ignore[{', '.join(sorted(ids))}]"
        return f"{body.rstrip()}  {comment}{line[len(body) :]}"
    known = {part.strip() for part in match["ids"].split(",") if part.strip()}
    merged = ", ".join(sorted(known | ids))
    return f"{body[: match.start('ids')]}{merged}{body[match.end('ids') :]}{line[len(body) :]}"


def _last_lines_of_statements(text: str) -> dict[int, int]:
    """For each line of a statement over several lines the last one, where a comment is
    possible and applies to all.
    """
    ends: dict[int, int] = {}
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            ends.update(dict.fromkeys(range(first, token.start[0]), token.start[0]))
            first = 0
        elif token.type not in _LAYOUT and not first:
            first = token.start[0]
    return ends
