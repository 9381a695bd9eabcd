"""GitLab's code quality report."""

import collections
import json
import os
from typing import Any, Final

from tpuport.lint.findings import Severity
from tpuport.lint.reports import Options, cell_prefix, region_in_file
from tpuport.lint.run_report import Report

_SEVERITIES: Final = {
    Severity.ERROR: "critical",
    Severity.WARNING: "minor",
    Severity.INFO: "info",
}


def render(report: Report, _: Options) -> str:
    """The report as a JSON list. Fingerprints stay the same when lines move, and no two
    are equal.
    """
    occurrences: collections.Counter[str] = collections.Counter()
    issues: list[dict[str, Any]] = []
    for finding in report.findings:
        region = region_in_file(finding)
        fingerprint = report.fingerprint(finding)
        # GitLab drops all but one of several issues with the same fingerprint.
        occurrences[fingerprint] += 1
        issues.append(
            {
                "description": f"{finding.rule}: {cell_prefix(finding)}{finding.message}. {finding.remedy}",
                "check_name": finding.rule,
                # Hexadecimal like the fingerprint itself, and of the same length for
                # all.
                "fingerprint": f"{fingerprint}{occurrences[fingerprint]:04x}",
                "severity": _SEVERITIES[finding.severity],
                "location": {
                    "path": os.path.relpath(finding.path).replace(os.sep, "/"),
                    "lines": {"begin": region.line, "end": region.end_line},
                },
            }
        )
    return json.dumps(issues, indent=1) + "\n"
