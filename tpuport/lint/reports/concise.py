"""One line a finding: `path:line:column: TPU101 reason`."""

from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.report import Report
from tpuport.lint.reports import Options
from tpuport.lint.reports.statistics import statistics
from tpuport.lint.reports.style import SEVERITY, Style, printable
from tpuport.lint.reports.summary import summary

MARKS = {Applicability.SAFE: " [fix]", Applicability.UNSAFE: " [unsafe fix]", Applicability.NONE: ""}


def render(report: Report, options: Options) -> str:
    """The report as text."""
    style = Style(options.color)
    lines = (
        statistics(report, style) if options.statistics else [headline(one, style) for one in report.findings]
    )
    return "\n".join([*lines, *([""] if lines else []), *summary(report, style, families=False)]) + "\n"


def headline(finding: Finding, style: Style) -> str:
    """A finding in one line."""
    place = f"{style(printable(finding.path), 'bold')}:{finding.line}:{finding.column}:"
    rule = style(f"{finding.rule} {finding.severity}", SEVERITY[finding.severity])
    return f"{place} {rule}{style(MARKS[finding.fix], 'cyan')}: {printable(finding.reason)}"
