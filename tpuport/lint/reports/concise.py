"""One line per finding: `path:line:column: TPU101 reason`."""

from tpuport.lint.reports import Options
from tpuport.lint.reports.terminal import Style, headline, statistics, summary
from tpuport.lint.run_report import Report


def render(report: Report, options: Options) -> str:
    """The report as text."""
    style = Style(options.color)
    lines = [headline(finding, style) for finding in report.findings]
    if options.statistics:
        lines = statistics(report, style)
    if options.quiet:
        return "".join(f"{line}\n" for line in lines)
    # An empty line sets the summary off, if there is anything before it.
    if lines:
        lines.append("")
    return "\n".join([*lines, *summary(report, style, by_family=False)]) + "\n"
