"""What the reports for people share: colours, a finding's headline, statistics, and the
summary at the end.
"""

import operator
import unicodedata
from typing import Final

from tpuport.base.plurals import count_noun
from tpuport.lint.entry_verdicts import summary_lines
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.rule_catalogue import entry_for
from tpuport.lint.rules.rule_registry import families
from tpuport.lint.run_report import Report

_ESCAPE_CODES: Final = {
    "bold": 1,
    "dim": 2,
    "red": 31,
    "green": 32,
    "yellow": 33,
    "blue": 34,
    "cyan": 36,
}
SEVERITY_COLORS: Final = {
    Severity.ERROR: "red",
    Severity.WARNING: "yellow",
    Severity.INFO: "blue",
}
_SEVERITY_NOUNS: Final = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "note",
}
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
    """Text of the linted code without the characters that control a terminal, tabs as
    four blanks.
    """
    # Nearly every text is; nothing of category C counts as printable.
    if text.isprintable():
        return text
    # The carets below a line count on one column per blank.
    return "".join(map(_printable_character, text.replace("\t", "    ")))


def _printable_character(char: str) -> str:
    # Category C: escape codes, but also marks that reverse the direction of what
    # follows.
    return (
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(char).startswith("C")
        else char
    )


def display_width(text: str) -> int:
    """Number of columns that a text takes in a terminal."""
    return sum(map(_character_width, text))


def _character_width(char: str) -> int:
    # A combining character is drawn over the one before it.
    if unicodedata.combining(char):
        return 0
    # Wide and full-width East Asian characters.
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def headline(finding: Finding, style: Style) -> str:
    """A finding on one line."""
    position = finding.place.removeprefix(finding.path)
    position = f"{style(printable(finding.path), 'bold')}{position}:{finding.column}:"
    rule = style(
        f"{finding.rule} {finding.severity}", SEVERITY_COLORS[finding.severity]
    )
    return f"{position} {rule}{style(_FIX_LABELS[finding.fix], 'cyan')}: {printable(finding.message)}"


# Of each group, so many entry points that are not expected to trace are named.
_MOST_VERDICTS: Final = 10


def statistics(report: Report, style: Style) -> list[str]:
    """One line per rule, the most frequent first: count, id, name, summary."""
    lines: list[str] = []
    # The sort is stable: rules that are equally frequent stay in the order of their
    # ids.
    for id_, count in sorted(
        report.by_rule().items(), key=operator.itemgetter(1), reverse=True
    ):
        entry = entry_for(id_)
        lines.append(
            f"{count:>6,}  {style(id_, 'bold')}  {entry.name:<28} {entry.summary}"
        )
    return lines


def summary(report: Report, style: Style, *, by_family: bool) -> list[str]:
    """Files, findings (by family if wanted), what can be fixed, and whether the model
    is expected to trace.
    """
    lines = [_counts_line(report, style)]
    if by_family:
        titles = families()
        for family, count in report.by_family().items():
            lines.append(f"  {family}xx {titles.get(family, ''):<24} {count:>6,}")
    lines += _fix_lines(report)
    if report.suppressed:
        lines.append(
            f"{count_noun(report.suppressed, 'finding')} suppressed by comments."
        )
    if report.known or report.stale:
        lines.append(_baseline_line(report))
    # Of a single entry point the last line says it all.
    if by_family and len(report.verdicts) > 1:
        lines += map(printable, summary_lines(report.verdicts, _MOST_VERDICTS))
    return [*lines, style(report.verdict(), "bold", _verdict_color(report))]


def _baseline_line(report: Report) -> str:
    known = f"{count_noun(report.known, 'finding')} known by the baseline"
    if not report.stale:
        return f"{known}."
    return f"{known}; {report.stale:,} of its entries no longer occur."


def _verdict_color(report: Report) -> str:
    if report.expected_to_trace:
        return "green"
    if report.stops:
        return "red"
    # Nothing is known to stop the trace, but not everything is known.
    return "yellow"


def _counts_line(report: Report, style: Style) -> str:
    size = f"{count_noun(report.files, 'file')} with {count_noun(report.lines, 'line')}"
    remarks = [f"{report.seconds:.2f} s"]
    if report.cached:
        remarks.append(f"{report.cached:,} unchanged since the last run")
    return f"{size}: {_finding_counts(report, style)} ({', '.join(remarks)})"


def _finding_counts(report: Report, style: Style) -> str:
    """`2 errors, 1 warning and 3 notes`."""
    parts: list[str] = []
    for severity in filter(report.count, Severity):
        counted = count_noun(report.count(severity), _SEVERITY_NOUNS[severity])
        parts.append(style(counted, SEVERITY_COLORS[severity]))
    # Errors, if there are any, come first.
    if report.errors:
        parts[0] += _passable_remark(report)
    match parts:
        case []:
            return "no findings"
        case [part]:
            return part
        case _:
            return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _passable_remark(report: Report) -> str:
    if not report.passable:
        return ""
    remark = (
        "does not stop the trace" if report.passable == 1 else "do not stop the trace"
    )
    # A relative clause is enough where it is about all of them.
    if report.passable == report.errors:
        return f" that {remark}"
    return f" ({report.passable:,} of them {remark})"


def _fix_lines(report: Report) -> list[str]:
    lines: list[str] = []
    if report.fixed:
        places = count_noun(sum(report.fixed.values()), "place")
        lines.append(f"Fixed {places} in {count_noun(len(report.fixed), 'file')}.")
    safe = report.fixable(Applicability.SAFE)
    unsafe = report.fixable(Applicability.UNSAFE)
    # Without a look at the code, some of these may turn out not to be fixable.
    at_most = "" if report.exact_fixes else "Up to "
    more = "more " if safe else ""
    if safe:
        lines.append(f"{at_most}{count_noun(safe, 'finding')} can be fixed with --fix.")
    if unsafe:
        lines.append(
            f"{at_most}{unsafe:,} {more}can be rewritten with --unsafe-fixes; look at the result."
        )
    return lines
