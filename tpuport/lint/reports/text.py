"""For people: each finding with its line, a caret, and what to write instead."""

from collections.abc import Sequence

from tpuport.lint.findings import Finding
from tpuport.lint.report import Report
from tpuport.lint.reports import Options
from tpuport.lint.reports.concise import headline
from tpuport.lint.reports.statistics import statistics
from tpuport.lint.reports.style import SEVERITY, Style, printable, width
from tpuport.lint.reports.summary import summary

# A longer line is shown from shortly before the finding on.
_WIDEST = 160
_BEFORE = 40


def render(report: Report, options: Options) -> str:
    """The report as text."""
    style = Style(options.color)
    lines: list[str] = []
    if options.statistics:
        lines = [*statistics(report, style), ""]
    else:
        for finding in report.findings:
            lines += [headline(finding, style)]
            if options.show_source:
                lines += _source(finding, report.source(finding.path), style)
            if len(finding.route) > 1:
                lines.append(f"  {style('traced:', 'dim')} {printable(' > '.join(finding.route))}")
            lines += [f"  {style('help:', 'green')} {printable(finding.remedy)}", ""]
    return "\n".join([*lines, *summary(report, style, families=True)]) + "\n"


def _source(finding: Finding, lines: Sequence[str], style: Style) -> list[str]:
    """The finding's first line and a caret below it; nothing where there is no such line."""
    if finding.line > len(lines) or not lines[finding.line - 1].strip():
        return []
    text = lines[finding.line - 1]
    start = min(finding.column - 1, len(text))
    end = finding.end_column - 1 if finding.end_line == finding.line else len(text.rstrip())
    end = max(end, start + 1)
    cut = max(0, start - _BEFORE) if len(text) > _WIDEST else 0
    before, marked = printable(text[cut:start]), printable(text[start : min(end, cut + _WIDEST)])
    shown = printable(text[cut : cut + _WIDEST])
    indent = len(before) - len(before.lstrip()) if not cut else 0
    gutter = f"{finding.line}"
    bar = style("|", "dim")
    carets = style("^" * max(1, width(marked)), SEVERITY[finding.severity])
    return [
        f"  {style(gutter, 'dim')} {bar} {shown[indent:].rstrip()}",
        f"  {' ' * len(gutter)} {bar} {' ' * width(before[indent:])}{carets}",
    ]
