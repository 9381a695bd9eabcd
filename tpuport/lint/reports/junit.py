"""JUnit XML: one test case per file with findings, which fails if one of them is an
error.
"""

import itertools
import re
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from tpuport.lint.findings import Finding, Severity
from tpuport.lint.reports import Options
from tpuport.lint.run_report import Report

# Characters that an XML document may not contain, even escaped.
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, _: Options) -> str:
    """The report as one test suite; findings that are not errors are a case's output.
    The verdict is a property.
    """
    # Findings are sorted, so those of a file are neighbours.
    by_path = itertools.groupby(report.findings, key=lambda finding: finding.path)
    groups = {path: list(findings) for path, findings in by_path}
    failures = len(
        {
            finding.path
            for finding in report.findings
            if finding.severity == Severity.ERROR
        }
    )
    # A suite without any case counts as a failure in some CI systems.
    case_count = max(report.files, len(groups), 1)
    attributes = (
        f'name="tpuport lint" tests="{case_count}" failures="{failures}" errors="0"'
    )
    attributes += f' time="{report.seconds:.3f}"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f"<testsuites {attributes}>",
        f"<testsuite {attributes}>",
        f'<properties><property name="verdict" value={_attribute(report.verdict())}/></properties>',
    ]
    for path, findings in groups.items():
        lines += _case(path, findings)
    # The report does not name the files without findings, but they count as tests that
    # passed.
    for number in range(1, case_count - len(groups) + 1):
        lines.append(f'<testcase name="clean file {number}" classname="tpuport lint"/>')
    return "\n".join([*lines, "</testsuite>", "</testsuites>"]) + "\n"


def _case(path: str, findings: list[Finding]) -> list[str]:
    lines = [
        f'<testcase name={_attribute(path)} classname="tpuport lint" file={_attribute(path)}>'
    ]
    output: list[str] = []
    for finding in findings:
        position = f"{finding.place}:{finding.column}: {finding.rule}"
        if finding.severity == Severity.ERROR:
            message = _attribute(f"{position}: {finding.message}")
            remedy = _text(finding.remedy)
            lines.append(
                f'<failure type="{finding.rule}" message={message}>{remedy}</failure>'
            )
        else:
            output.append(
                _text(
                    f"{position} {finding.severity}: {finding.message}; {finding.remedy}"
                )
            )
    if output:
        lines.append("<system-out>" + "\n".join(output) + "</system-out>")
    return [*lines, "</testcase>"]


def _text(text: str) -> str:
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))


def _attribute(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))
