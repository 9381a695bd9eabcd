"""JSON with a versioned schema, which docs/lint.md describes. Within a version fields
are only ever added.
"""

import json
from typing import Any, Final

from tpuport.lint.findings import FIELD_NAMES, Applicability, Finding, Severity
from tpuport.lint.reports import Options
from tpuport.lint.rule_catalogue import entry_for
from tpuport.lint.run_report import Report
from tpuport.version import __version__

SCHEMA_VERSION: Final = 1


def render(report: Report, options: Options) -> str:
    """The report as one JSON object."""
    # Statistics leave the findings out.
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "tpuport lint", "version": __version__},
        "summary": _summary_fields(report),
    }
    content["entry_points"] = [
        {
            "name": verdict.name,
            "path": verdict.path,
            "line": verdict.line,
            "cell": verdict.cell,
            "group": verdict.group,
            "expected_to_trace": not verdict.errors,
            "errors": [f"{error.place}: {error.rule}" for error in verdict.errors],
        }
        for verdict in report.verdicts
    ]
    if not options.statistics:
        content["findings"] = [
            _finding_fields(finding, report) for finding in report.findings
        ]
        content["outside"] = [
            _finding_fields(finding, report) for finding in report.outside
        ]
    return json.dumps(content, indent=1) + "\n"


def _summary_fields(report: Report) -> dict[str, Any]:
    return {
        "files": report.files,
        "lines": report.lines,
        "entry_points": report.entry_points,
        "traced_functions": report.traced,
        "unmatched_entry_points": list(report.unmatched_entry_points),
        "expected_to_trace": report.expected_to_trace,
        "verdict": report.verdict(),
        "exit_code": report.exit_code,
        "by_severity": {
            severity.value: report.count(severity) for severity in Severity
        },
        "by_rule": report.by_rule(),
        "fixable": report.fixable(Applicability.SAFE),
        "fixable_unsafe": report.fixable(Applicability.UNSAFE),
        "fixed": report.fixed,
        "suppressed": report.suppressed,
        "known_by_baseline": report.known,
        "stale_in_baseline": report.stale,
        # The only fields that two runs over the same files may differ in.
        "cached_files": report.cached,
        "seconds": round(report.seconds, 3),
    }


def _finding_fields(finding: Finding, report: Report) -> dict[str, Any]:
    return {
        **{name: getattr(finding, name) for name in FIELD_NAMES},
        "name": entry_for(finding.rule).name,
        "fingerprint": report.fingerprint(finding),
    }
