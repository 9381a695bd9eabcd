"""For people: each finding with its line, a caret, and what to write instead."""

from collections.abc import Sequence

from tpuport.lint.findings import Finding
from tpuport.lint.reports import Options
from tpuport.lint.reports.terminal import (
    SEVERITY_COLORS,
    Style,
    display_width,
    headline,
    printable,
    statistics,
    summary,
)
from tpuport.lint.run_report import Report

# Of a longer line only a window of this many characters is shown, which starts shortly
# before the finding.
_MAX_WIDTH = 160
_CONTEXT = 40


def render(report: Report, options: Options) -> str:
    """The report as text."""
    style = Style(options.color)
    lines: list[str] = []
    for finding in report.findings:
        lines += _finding_lines(finding, report, options, style)
    if options.statistics:
        lines = [*statistics(report, style), ""]
    if options.quiet:
        return "".join(f"{line}\n" for line in lines)
    return "\n".join([*lines, *summary(report, style, by_family=True)]) + "\n"


def _finding_lines(
    finding: Finding, report: Report, options: Options, style: Style
) -> list[str]:
    lines = [headline(finding, style)]
    if options.show_source:
        lines += _source_lines(finding, report.source(finding), style)
    # The first function of a route is the entry point itself.
    if len(finding.route) > 1:
        lines.append(
            f"  {style('traced:', 'dim')} {printable(' > '.join(finding.route))}"
        )
    return [*lines, f"  {style('help:', 'green')} {printable(finding.remedy)}", ""]


def _source_lines(finding: Finding, lines: Sequence[str], style: Style) -> list[str]:
    """The finding's first line with carets below it; nothing if the file has no such
    line.
    """
    if finding.line > len(lines) or not lines[finding.line - 1].strip():
        return []
    text = lines[finding.line - 1]
    start, end = min(finding.column - 1, len(text)), finding.end_column - 1
    # Of a finding over several lines, the rest of the first.
    if finding.end_line > finding.line:
        end = len(text.rstrip())
    window_start = 0
    if len(text) > _MAX_WIDTH:
        window_start = max(0, start - _CONTEXT)
    window_end = window_start + _MAX_WIDTH
    before = printable(text[window_start:start])
    highlighted = printable(text[start : min(max(end, start + 1), window_end)])
    visible = printable(text[window_start:window_end])
    indent = len(before) - len(before.lstrip())
    # What a window starts with is the middle of the line, and no indent.
    if window_start:
        indent = 0
    line_number = f"{finding.line}"
    bar = style("|", "dim")
    padding = " " * display_width(before[indent:])
    # A finding at the end of a line, say a missing token, still gets one caret.
    carets = style(
        "^" * max(1, display_width(highlighted)), SEVERITY_COLORS[finding.severity]
    )
    return [
        f"  {style(line_number, 'dim')} {bar} {visible[indent:].rstrip()}",
        f"  {' ' * len(line_number)} {bar} {padding}{carets}",
    ]
