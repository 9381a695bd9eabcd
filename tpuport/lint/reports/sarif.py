"""SARIF 2.1.0, which code scanning services read."""

import collections
import json
import os
import urllib.parse
from typing import Any, Final

import tpuport
from tpuport.lint.catalogue import Entry, entries, markdown
from tpuport.lint.diagnostics import is_failure
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.report import Report
from tpuport.lint.reports import Options

_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_PRECISION: Final = "high"


def render(report: Report, _: Options) -> str:
    """The report as a SARIF log with one run."""
    numbers = {one.id: number for number, one in enumerate(entries())}
    seen: collections.Counter[str] = collections.Counter()
    run = {
        "tool": {
            "driver": {
                "name": "tpuport lint",
                "semanticVersion": tpuport.__version__,
                "rules": [_rule(one) for one in entries()],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": _directory_uri()}},
        "invocations": [
            {
                "executionSuccessful": not report.failed,
                "exitCode": report.exit_code,
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": one.reason}, "locations": [_location(one)]}
                    for one in report.findings
                    if is_failure(one)
                ],
            }
        ],
        "results": [_result(finding, numbers, report, seen) for finding in report.findings],
        "properties": {"expectedToTrace": report.expected_to_trace, "verdict": report.verdict()},
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1) + "\n"


def _rule(one: Entry) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": "".join(part.capitalize() for part in one.name.split("-")),
        "shortDescription": {"text": f"{one.summary[:1].upper()}{one.summary[1:]}."},
        "fullDescription": {"text": one.why},
        "help": {"text": f"{one.remedy[:1].upper()}{one.remedy[1:]}.", "markdown": markdown(one)},
        "defaultConfiguration": {"level": _LEVELS[one.severity]},
        "properties": {
            "tags": [one.family],
            "precision": _PRECISION,
            "problem.severity": _problem(one.severity),
        },
    }


def _problem(severity: Severity) -> str:
    return "recommendation" if severity == Severity.INFO else severity.value


def _result(
    finding: Finding, numbers: dict[str, int], report: Report, seen: collections.Counter[str]
) -> dict[str, Any]:
    fingerprint = report.fingerprint(finding)
    seen[fingerprint] += 1
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": numbers[finding.rule],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.reason}. {finding.remedy[:1].upper()}{finding.remedy[1:]}."},
        "locations": [_location(finding)],
        "partialFingerprints": {"tpuportLint/v1": f"{fingerprint}:{seen[fingerprint]}"},
    }
    if finding.fix != Applicability.NONE or len(finding.route) > 1:
        result["properties"] = {"fix": finding.fix.value, "route": list(finding.route)}
    return result


def _location(finding: Finding) -> dict[str, Any]:
    physical: dict[str, Any] = {
        "artifactLocation": _artifact(finding.path),
        "region": {
            "startLine": finding.line,
            "startColumn": finding.column,
            "endLine": finding.end_line,
            "endColumn": finding.end_column,
        },
    }
    location: dict[str, Any] = {"physicalLocation": physical}
    if finding.function:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.function}]
    return location


def _artifact(path: str) -> dict[str, str]:
    relative = os.path.relpath(path)
    if relative.startswith(".."):
        return {"uri": "file://" + _quoted(os.path.abspath(path))}  # noqa: PTH100 - symbolic links stay
    return {"uri": _quoted(relative), "uriBaseId": "SRCROOT"}


def _quoted(path: str) -> str:
    return urllib.parse.quote(os.fsencode(path.replace(os.sep, "/")))


def _directory_uri() -> str:
    return f"file://{_quoted(os.getcwd())}/"  # noqa: PTH109
