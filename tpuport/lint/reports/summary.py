"""The last lines of a report for people."""

from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.report import Report, counted
from tpuport.lint.reports.style import Style
from tpuport.lint.rules.registry import families


def summary(report: Report, style: Style, *, families: bool) -> list[str]:
    """Files, findings by family, what can be fixed, and whether the model is expected to trace."""
    lines = [_counts(report, style)]
    if families and report.findings:
        lines += _families(report)
    lines += _fixes(report)
    if report.suppressed:
        lines.append(f"{counted(report.suppressed, 'finding')} suppressed by comments.")
    if report.known or report.stale:
        stale = f"; {report.stale:,} of its entries no longer occur" if report.stale else ""
        lines.append(f"{counted(report.known, 'finding')} known by the baseline{stale}.")
    color = "green" if report.expected_to_trace else "yellow" if not report.stops else "red"
    return [*lines, style(report.verdict(), "bold", color)]


def _counts(report: Report, style: Style) -> str:
    parts = [
        style(counted(report.count(severity), noun), color)
        + (_passable(report) if severity == Severity.ERROR else "")
        for severity, noun, color in (
            (Severity.ERROR, "error", "red"),
            (Severity.WARNING, "warning", "yellow"),
            (Severity.INFO, "note", "blue"),
        )
        if report.count(severity)
    ]
    found = (
        " and ".join([", ".join(parts[:-1]), parts[-1]])
        if len(parts) > 1
        else "".join(parts) or "no findings"
    )
    cached = f", {report.cached:,} unchanged since the last run" if report.cached else ""
    size = f"{counted(report.files, 'file')} with {counted(report.lines, 'line')}"
    return f"{size}: {found} ({report.seconds:.2f} s{cached})"


def _passable(report: Report) -> str:
    if not report.passable:
        return ""
    if report.passable == report.errors:
        return " that do not stop the trace" if report.errors > 1 else " that does not stop the trace"
    return f" ({report.passable:,} of them {'do' if report.passable > 1 else 'does'} not stop the trace)"


def _families(report: Report) -> list[str]:
    titles = families()
    return [
        f"  {family}xx {titles.get(family, ''):<24} {count:>6,}"
        for family, count in report.by_family().items()
    ]


def _fixes(report: Report) -> list[str]:
    lines = []
    if report.fixed:
        places = counted(sum(report.fixed.values()), "place")
        lines.append(f"Fixed {places} in {counted(len(report.fixed), 'file')}.")
    safe, unsafe = report.fixable(Applicability.SAFE), report.fixable(Applicability.UNSAFE)
    most = "" if report.exact_fixes else "Up to "
    if safe:
        lines.append(f"{most}{counted(safe, 'finding')} can be fixed with --fix.")
    if unsafe:
        more = "more " if safe else ""
        lines.append(f"{most}{unsafe:,} {more}can be rewritten with --unsafe-fixes; look at the result.")
    return lines
