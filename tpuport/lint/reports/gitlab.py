"""GitLab's code quality report."""

import collections
import json
import os
from typing import Final

from tpuport.lint.findings import Severity
from tpuport.lint.report import Report
from tpuport.lint.reports import Options

_SEVERITIES: Final = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(report: Report, _: Options) -> str:
    """The report as a JSON list. Fingerprints stay when lines move, and no two are the same."""
    seen: collections.Counter[str] = collections.Counter()
    issues = []
    for finding in report.findings:
        fingerprint = report.fingerprint(finding)
        seen[fingerprint] += 1
        issues.append(
            {
                "description": f"{finding.rule}: {finding.reason}. {finding.remedy}",
                "check_name": finding.rule,
                "fingerprint": f"{fingerprint}{seen[fingerprint]:04x}",
                "severity": _SEVERITIES[finding.severity],
                "location": {
                    "path": os.path.relpath(finding.path).replace(os.sep, "/"),
                    "lines": {"begin": finding.line, "end": finding.end_line},
                },
            }
        )
    return json.dumps(issues, indent=1) + "\n"
