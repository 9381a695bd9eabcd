"""JUnit XML: a test case a file with findings, which fails where one is an error."""

import itertools
import re
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from tpuport.lint.findings import Finding, Severity
from tpuport.lint.report import Report
from tpuport.lint.reports import Options

# What no XML document may hold, even escaped.
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, _: Options) -> str:
    """The report as one test suite; what is no error is a case's output. The verdict is a property."""
    groups = [
        (path, list(group)) for path, group in itertools.groupby(report.findings, key=lambda one: one.path)
    ]
    bad = sum(any(one.severity == Severity.ERROR for one in group) for _, group in groups)
    counts = f'tests="{max(report.files, len(groups), 1)}" failures="{bad}" errors="0"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuites name="tpuport lint" {counts} time="{report.seconds:.3f}">',
        f'<testsuite name="tpuport lint" {counts} time="{report.seconds:.3f}">',
        f'<properties><property name="verdict" value={_attribute(report.verdict())}/></properties>',
    ]
    for path, group in groups:
        lines += _case(path, group)
    clean = max(report.files, len(groups), 1) - len(groups)
    lines += [
        f'<testcase name="clean file {number + 1}" classname="tpuport lint"/>' for number in range(clean)
    ]
    return "\n".join([*lines, "</testsuite>", "</testsuites>"]) + "\n"


def _case(path: str, findings: list[Finding]) -> list[str]:
    lines = [f'<testcase name={_attribute(path)} classname="tpuport lint" file={_attribute(path)}>']
    others: list[str] = []
    for finding in findings:
        place = f"{path}:{finding.line}:{finding.column}: {finding.rule}"
        if finding.severity == Severity.ERROR:
            message = _attribute(f"{place}: {finding.reason}")
            lines.append(
                f'<failure type="{finding.rule}" message={message}>{_text(finding.remedy)}</failure>'
            )
        else:
            others.append(_text(f"{place} {finding.severity}: {finding.reason}; {finding.remedy}"))
    if others:
        lines.append("<system-out>" + "\n".join(others) + "</system-out>")
    return [*lines, "</testcase>"]


def _text(text: str) -> str:
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))


def _attribute(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))
