"""SARIF 2.1.0, which code scanning services read."""

import collections
import json
import os
import urllib.parse
from typing import Any, Final

from tpuport.lint.diagnostics import is_failure
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.reports import Options, cell_prefix, region_in_file
from tpuport.lint.rule_catalogue import Entry, all_entries, entry_markdown
from tpuport.lint.run_report import Report
from tpuport.version import __version__

_LEVELS: Final = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "note",
}
# GitHub's own field, with GitHub's own names.
_PROBLEM_SEVERITIES: Final = {
    Severity.ERROR: "error",
    Severity.WARNING: "warning",
    Severity.INFO: "recommendation",
}
_PRECISION: Final = "high"


def render(report: Report, _: Options) -> str:
    """The report as a SARIF log with one run."""
    run = {
        "tool": {
            "driver": {
                "name": "tpuport lint",
                "semanticVersion": __version__,
                "rules": list(map(_rule, all_entries())),
            }
        },
        # SARIF counts UTF-16 code units unless told otherwise.
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": _working_directory_uri()}},
        "invocations": [
            {
                "executionSuccessful": not report.failed,
                "exitCode": report.exit_code,
                "toolExecutionNotifications": [
                    _notification(finding)
                    for finding in report.findings
                    if is_failure(finding)
                ],
            }
        ],
        "results": _results(report),
        "properties": {
            "expectedToTrace": report.expected_to_trace,
            "verdict": report.verdict(),
        },
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, indent=1) + "\n"


def _rule(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": "".join(part.capitalize() for part in entry.name.split("-")),
        "shortDescription": {"text": f"{_capitalized(entry.summary)}."},
        "fullDescription": {"text": entry.why},
        "help": {
            "text": f"{_capitalized(entry.remedy)}.",
            "markdown": entry_markdown(entry),
        },
        "defaultConfiguration": {"level": _LEVELS[entry.severity]},
        "properties": {
            "tags": [entry.family],
            "precision": _PRECISION,
            "problem.severity": _PROBLEM_SEVERITIES[entry.severity],
        },
    }


def _capitalized(text: str) -> str:
    """The text with a capital first letter; unlike `str.capitalize` it leaves the other
    letters alone.
    """
    return text[:1].upper() + text[1:]


def _notification(finding: Finding) -> dict[str, Any]:
    return {
        "level": "error",
        "message": {"text": finding.reason},
        "locations": [_location(finding)],
    }


def _results(report: Report) -> list[dict[str, Any]]:
    rule_indices = {entry.id: index for index, entry in enumerate(all_entries())}
    occurrences: collections.Counter[str] = collections.Counter()
    results: list[dict[str, Any]] = []
    for finding in report.findings:
        fingerprint = report.fingerprint(finding)
        # A number tells equal lines of one function apart.
        occurrences[fingerprint] += 1
        result: dict[str, Any] = {
            "ruleId": finding.rule,
            "ruleIndex": rule_indices[finding.rule],
            "level": _LEVELS[finding.severity],
            "message": {
                "text": f"{cell_prefix(finding)}{finding.message}. {_capitalized(finding.remedy)}."
            },
            "locations": [_location(finding)],
            "partialFingerprints": {
                "tpuportLint/v1": f"{fingerprint}:{occurrences[fingerprint]}"
            },
        }
        # The first function of a route is the entry point itself, which the location
        # names.
        if finding.fix != Applicability.NONE or len(finding.route) > 1:
            result["properties"] = {
                "fix": finding.fix.value,
                "route": list(finding.route),
            }
        results.append(result)
    return results


def _location(finding: Finding) -> dict[str, Any]:
    span = region_in_file(finding)
    region = {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }
    artifact = _artifact_location(finding.path)
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": artifact, "region": region}
    }
    if finding.function:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.function}]
    return location


def _artifact_location(path: str) -> dict[str, str]:
    relative = os.path.relpath(path)
    # Viewers resolve paths below SRCROOT against their own checkout; others are this
    # machine's.
    if relative.startswith(".."):
        absolute = os.path.abspath(path)  # noqa: PTH100 - symbolic links are not resolved
        return {"uri": "file://" + _percent_encoded(absolute)}
    return {"uri": _percent_encoded(relative), "uriBaseId": "SRCROOT"}


def _percent_encoded(path: str) -> str:
    return urllib.parse.quote(os.fsencode(path.replace(os.sep, "/")))


def _working_directory_uri() -> str:
    return f"file://{_percent_encoded(os.getcwd())}/"  # noqa: PTH109
