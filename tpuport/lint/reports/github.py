"""GitHub workflow commands: an annotation a finding in the pull request."""

import os
from typing import Final

from tpuport.lint.catalogue import entry
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.report import Report
from tpuport.lint.reports import Options

_COMMANDS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report, _: Options) -> str:
    """The report as workflow commands, and the verdict."""
    lines = [_annotation(finding) for finding in report.findings]
    return "\n".join([*lines, report.verdict()]) + "\n"


def _annotation(finding: Finding) -> str:
    relative = os.path.relpath(finding.path)
    properties = {
        "file": finding.path if relative.startswith("..") else relative,
        "line": finding.line,
        "endLine": finding.end_line,
        "title": f"{finding.rule} {entry(finding.rule).name}",
    }
    if finding.line == finding.end_line:  # columns are refused for a range of lines
        properties |= {"col": finding.column, "endColumn": finding.end_column}
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return (
        f"::{_COMMANDS[finding.severity]} {listed}::{_message(f'{finding.reason}. help: {finding.remedy}')}"
    )


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
