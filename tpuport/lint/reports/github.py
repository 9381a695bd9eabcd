"""GitHub workflow commands: one annotation per finding in the pull request."""

from typing import Final

from tpuport.lint.findings import Finding, Severity
from tpuport.lint.paths import relative_to_working_directory
from tpuport.lint.reports import Options, cell_prefix, region_in_file
from tpuport.lint.rule_catalogue import entry_for
from tpuport.lint.run_report import Report

_COMMANDS: Final = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "notice",
}


def render(report: Report, options: Options) -> str:
    """The report as workflow commands, and the verdict."""
    lines = list(map(_annotation, report.findings))
    if not options.quiet:
        lines.append(report.verdict())
    return "".join(f"{line}\n" for line in lines)


def _annotation(finding: Finding) -> str:
    region = region_in_file(finding)
    properties = {
        "file": relative_to_working_directory(finding.path),
        "line": region.line,
        "endLine": region.end_line,
        "title": f"{finding.rule} {entry_for(finding.rule).name}",
    }
    if region.line == region.end_line:  # GitHub refuses columns for a range of lines
        properties |= {"col": region.column, "endColumn": region.end_column}
    parameters = ",".join(
        f"{name}={_escape_property(str(value))}" for name, value in properties.items()
    )
    message = _escape_message(
        f"{cell_prefix(finding)}{finding.message}. help: {finding.remedy}"
    )
    return f"::{_COMMANDS[finding.severity]} {parameters}::{message}"


def _escape_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")
