"""Findings and changes of texts as values of the language server protocol."""

import difflib
import itertools
from collections.abc import Sequence
from typing import Final

from lsprotocol import types
from pygls import uris
from pygls.workspace import PositionCodec

from tpuport.lint.findings import Finding, Severity
from tpuport.lint.result_cache import user_cache_directory
from tpuport.lint.rule_catalogue import entry_for, entry_markdown
from tpuport.lint.source import split_lines
from tpuport.server.project_analysis import ShownFinding
from tpuport.server.routes import RouteStep
from tpuport.version import __version__

SOURCE: Final = "tpuport"
_SEVERITIES: Final = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}
_UNUSED_SUPPRESSION: Final = "TPU003"


def range_of(
    finding: Finding, lines: Sequence[str], codec: PositionCodec
) -> types.Range:
    """A finding's range in the units that the client counts columns in.

    Args:
        finding: lines and columns from 1, in characters.
        lines: of the file, without line ends.
        codec: of the connection.
    """
    return types.Range(
        _position(finding.line, finding.column, lines, codec),
        _position(finding.end_line, finding.end_column, lines, codec),
    )


def _position(
    line: int, column: int, lines: Sequence[str], codec: PositionCodec
) -> types.Position:
    # The protocol counts from 0. Python reports the end of an incomplete file behind
    # its last line.
    return codec.position_to_client_units(lines, types.Position(line - 1, column - 1))


def diagnostic(
    shown: ShownFinding, lines: Sequence[str], codec: PositionCodec
) -> types.Diagnostic:
    """A finding as a diagnostic."""
    finding = shown.finding
    return types.Diagnostic(
        range=range_of(finding, lines, codec),
        message=f"{finding.message}\nhelp: {finding.remedy}",
        severity=_SEVERITIES[finding.severity],
        code=finding.rule,
        code_description=types.CodeDescription(_rule_page(finding.rule)),
        source=SOURCE,
        # Editors show what is unnecessary in a fainter colour.
        tags=[types.DiagnosticTag.Unnecessary]
        if finding.rule == _UNUSED_SUPPRESSION
        else None,
        related_information=list(map(_related, shown.route)) or None,
    )


def _related(step: RouteStep) -> types.DiagnosticRelatedInformation:
    position = types.Position(step.line - 1, step.column - 1)
    location = types.Location(file_uri(step.path), types.Range(position, position))
    return types.DiagnosticRelatedInformation(location, f"traced through {step.name}")


def file_uri(path: str) -> str:
    """The URI of an absolute path."""
    uri = uris.from_fs_path(path)
    assert uri is not None
    return uri


def hover_text(finding: Finding) -> str:
    """A finding and its rule as Markdown."""
    entry = entry_for(finding.rule)
    heading = (
        f"**{finding.rule} {entry.name}**: {finding.message}\n\nhelp: {finding.remedy}"
    )
    return f"{heading}\n\n---\n\n{entry_markdown(entry)}"


def _rule_page(rule: str) -> str:
    """The URI of a rule's page, which is written from the installed rules: it needs no
    network, and fits them.
    """
    entry = entry_for(rule)
    page = user_cache_directory() / "rules" / __version__ / f"{rule}.md"
    text = f"# {rule} {entry.name}\n\n{entry_markdown(entry)}\n"
    try:
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
    except OSError:
        # The link leads nowhere, and everything else works.
        pass
    return file_uri(str(page))


def text_edits(old: str, new: str, codec: PositionCodec) -> list[types.TextEdit]:
    """The edits of whole lines that turn one text into another."""
    old_lines, new_lines = _lines_with_ends(old), _lines_with_ends(new)
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    edits: list[types.TextEdit] = []
    for tag, first, last, new_first, new_last in matcher.get_opcodes():
        if tag != "equal":
            edit_range = types.Range(
                _line_start(old_lines, first, codec),
                _line_start(old_lines, last, codec),
            )
            edits.append(
                types.TextEdit(edit_range, "".join(new_lines[new_first:new_last]))
            )
    return edits


def _lines_with_ends(text: str) -> list[str]:
    """The lines of a text as the protocol counts them, which is as Python's parser
    does, and not as splitlines.
    """
    lines: list[str] = []
    position = 0
    for line, following in itertools.pairwise([*split_lines(text), None]):
        assert line is not None
        end = position + len(line)
        if following is not None:
            end += 2 if text.startswith("\r\n", end) else 1
        lines.append(text[position:end])
        position = end
    return lines


def _line_start(
    lines: Sequence[str], index: int, codec: PositionCodec
) -> types.Position:
    """Where a line starts; the end of the text if there is no such line."""
    if index < len(lines):
        return types.Position(index, 0)
    return types.Position(len(lines) - 1, codec.client_num_units(lines[-1]))
