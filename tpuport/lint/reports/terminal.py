"""What the reports for people share: colours, a finding's headline, statistics, and the summary at the end."""

import unicodedata
from typing import Final

from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.rule_catalogue import entry_for
from tpuport.lint.rules.rule_registry import families
from tpuport.lint.run_report import Report, count_noun

_ESCAPE_CODES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}
SEVERITY_COLORS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}
_SEVERITY_NOUNS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_FIX_LABELS: Final = {
    Applicability.SAFE: " [fix]",
    Applicability.UNSAFE: " [unsafe fix]",
    Applicability.NONE: "",
}


class Style:
    """Colours text, if colours are on."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def __call__(self, text: str, *names: str) -> str:
        """The text in some colours."""
        if not self.color or not text:
            return text
        start = "".join(f"\x1b[{_ESCAPE_CODES[name]}m" for name in names)
        return f"{start}{text}\x1b[0m"


def printable(text: str) -> str:
    """Text of the linted code without the characters that control a terminal, tabs as four blanks."""
    # The carets below a line count on one column per blank.
    text = text.replace("\t", "    ")
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    return unicodedata.category(char).startswith("C")


def display_width(text: str) -> int:
    """Number of columns that a text takes in a terminal."""
    return sum(map(_character_width, text))


def _character_width(char: str) -> int:
    # A combining character is drawn over the one before it, and East Asian ones are twice as wide.
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def headline(finding: Finding, style: Style) -> str:
    """A finding on one line."""
    position = f"{style(printable(finding.path), 'bold')}:{finding.line}:{finding.column}:"
    rule = style(f"{finding.rule} {finding.severity}", SEVERITY_COLORS[finding.severity])
    return f"{position} {rule}{style(_FIX_LABELS[finding.fix], 'cyan')}: {printable(finding.reason)}"


def statistics(report: Report, style: Style) -> list[str]:
    """One line per rule, the most frequent first: count, id, name, summary."""
    lines: list[str] = []
    for id_, count in sorted(report.by_rule().items(), key=lambda item: (-item[1], item[0])):
        entry = entry_for(id_)
        lines.append(f"{count:>6,}  {style(id_, 'bold')}  {entry.name:<28} {entry.summary}")
    return lines


def summary(report: Report, style: Style, *, by_family: bool) -> list[str]:
    """Files, findings (by family if wanted), what can be fixed, and whether the model is expected to trace."""
    lines = [_counts_line(report, style)]
    if by_family:
        titles = families()
        for family, count in report.by_family().items():
            lines.append(f"  {family}xx {titles.get(family, ''):<24} {count:>6,}")
    lines += _fix_lines(report)
    if report.suppressed:
        lines.append(f"{count_noun(report.suppressed, 'finding')} suppressed by comments.")
    if report.known or report.stale:
        stale = f"; {report.stale:,} of its entries no longer occur" if report.stale else ""
        lines.append(f"{count_noun(report.known, 'finding')} known by the baseline{stale}.")
    return [*lines, style(report.verdict(), "bold", _verdict_color(report))]


def _verdict_color(report: Report) -> str:
    if report.expected_to_trace:
        return "green"
    return "red" if report.stops else "yellow"


def _counts_line(report: Report, style: Style) -> str:
    size = f"{count_noun(report.files, 'file')} with {count_noun(report.lines, 'line')}"
    cached = f", {report.cached:,} unchanged since the last run" if report.cached else ""
    return f"{size}: {_finding_counts(report, style)} ({report.seconds:.2f} s{cached})"


def _finding_counts(report: Report, style: Style) -> str:
    """`2 errors, 1 warning and 3 notes`."""
    parts: list[str] = []
    for severity, noun in _SEVERITY_NOUNS.items():
        count = report.count(severity)
        if count:
            parts.append(style(count_noun(count, noun), SEVERITY_COLORS[severity]))
            if severity == Severity.ERROR:
                parts[-1] += _passable_remark(report)
    if not parts:
        return "no findings"
    *first_parts, last_part = parts
    return " and ".join([", ".join(first_parts), last_part]) if first_parts else last_part


def _passable_remark(report: Report) -> str:
    verb = "does" if report.passable == 1 else "do"
    if not report.passable:
        return ""
    if report.passable == report.errors:
        return f" that {verb} not stop the trace"
    return f" ({report.passable:,} of them {verb} not stop the trace)"


def _fix_lines(report: Report) -> list[str]:
    lines: list[str] = []
    if report.fixed:
        places = count_noun(sum(report.fixed.values()), "place")
        lines.append(f"Fixed {places} in {count_noun(len(report.fixed), 'file')}.")
    safe = report.fixable(Applicability.SAFE)
    unsafe = report.fixable(Applicability.UNSAFE)
    # Without a look at the code, some of these may turn out not to be fixable.
    at_most = "" if report.exact_fixes else "Up to "
    if safe:
        lines.append(f"{at_most}{count_noun(safe, 'finding')} can be fixed with --fix.")
    if unsafe:
        more = "more " if safe else ""
        lines.append(f"{at_most}{unsafe:,} {more}can be rewritten with --unsafe-fixes; look at the result.")
    return lines
