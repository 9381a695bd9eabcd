"""The TPU compiler's verdict on a target, from `tpuport compile`'s child process."""

import time
from typing import Any

from tpuport.errors import PortError
from tpuport.topology import compile_process
from tpuport.topology.compile_messages import CompileRequest, CompileResult
from tpuport.trace_errors import Source
from tpuport.verification.check_result import CheckFinding, Stage


def compile_target(request: CompileRequest) -> tuple[Stage, list[CheckFinding]]:
    """Compile a target for a described TPU: the stage, and what the compiler refuses or advises."""
    started = time.monotonic()
    findings: list[CheckFinding] = []
    summary: list[str] = []
    status: Any = "passed"
    try:
        for event in compile_process.run_in_child(request):
            if isinstance(event, CompileResult):
                findings += _findings(event)
                summary += _summary(event)
    except PortError as error:
        status = "failed"
        where = f" ({error.where})" if error.where else ""
        findings.append(CheckFinding("failure", "topology", "error", f"{error.what}{where}", error.fix or ""))
    if status == "passed" and any(finding.severity == "error" for finding in findings):
        status = "findings"
    return Stage("topology", status, "; ".join(summary), time.monotonic() - started), findings


def _findings(result: CompileResult) -> list[CheckFinding]:
    reason = result.reason
    if reason is not None:
        source = reason.get("source")
        return [
            CheckFinding(
                "topology", "topology", "error", f"{result.target} on {result.topology}: {reason['message']}",
                reason.get("remedy") or "", Source(**source) if source else None, reason.get("rule"),
            )
        ]  # fmt: skip
    assert result.report is not None
    return [
        CheckFinding(
            "topology", "topology", "note", advice["message"], advice.get("remedy") or "",
            rule=advice.get("rule") or advice.get("id"),
        )
        for advice in result.report["advice"]
    ]  # fmt: skip


def _summary(result: CompileResult) -> list[str]:
    if result.report is None:
        return []
    word = "fits" if result.fits else "does not fit"
    return [f"{result.target} {word} {result.topology}"]
