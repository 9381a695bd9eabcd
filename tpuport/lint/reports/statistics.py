"""How often each rule was broken."""

from tpuport.lint.catalogue import entry
from tpuport.lint.report import Report
from tpuport.lint.reports.style import Style


def statistics(report: Report, style: Style) -> list[str]:
    """A line a rule, the most frequent first: count, id, name, what it finds."""
    counted = sorted(report.by_rule().items(), key=lambda item: (-item[1], item[0]))
    lines: list[str] = []
    for id_, count in counted:
        known = entry(id_)
        lines.append(f"{count:>6,}  {style(id_, 'bold')}  {known.name:<28} {known.summary}")
    return lines
