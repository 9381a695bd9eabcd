"""The TPU compiler's verdict on a target, from `tpuport compile`'s child process."""

import time
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology import compile_process
from tpuport.topology.compile_messages import CompileRequest, CompileResult
from tpuport.trace_errors import Source
from tpuport.verification.check_result import CheckFinding, Stage

_FIT: Final = "choose a larger slice, or divide more with --tp; tpuport compile shows what takes the memory"


def compile_target(request: CompileRequest) -> tuple[Stage, list[CheckFinding]]:
    """Compile a target for a described TPU: the stage, and what the compiler refuses or
    advises.
    """
    started = time.monotonic()
    findings: list[CheckFinding] = []
    summary: list[str] = []
    status: Any = "passed"
    try:
        for event in compile_process.run_in_child(request):
            if isinstance(event, CompileResult):
                findings += _findings(event)
                summary.append(_summarize(event))
    except PortError as error:
        status = "failed"
        findings.append(_failure(error))
    if not summary and status == "passed":
        # Nothing was compiled, which is not a reason to say that it fits.
        status = "skipped"
    if status == "passed" and any(finding.severity == "error" for finding in findings):
        status = "findings"
    return Stage(
        "topology", status, "; ".join(summary), time.monotonic() - started
    ), findings


def _failure(error: PortError) -> CheckFinding:
    message = error.what
    if error.where:
        message = f"{error.what} ({error.where})"
    return CheckFinding("failure", "topology", "error", message, error.fix or "")


def _findings(result: CompileResult) -> list[CheckFinding]:
    if not result.fits:
        return [_refusal(result)]
    assert result.report is not None
    return [
        CheckFinding(
            "topology",
            "topology",
            "note",
            advice["message"],
            advice["remedy"],
            rule=advice["rule"],
        )
        for advice in result.report["advice"]
    ]


def _refusal(result: CompileResult) -> CheckFinding:
    """About a model that cannot be traced, or a program that does not fit."""
    reason = result.reason
    if reason is None:
        # The compiler made a program, and it takes more than the chip's memory.
        return CheckFinding("topology", "topology", "error", _summarize(result), _FIT)
    source = None
    if reason["source"] is not None:
        source = Source(**reason["source"])
    return CheckFinding(
        "topology", "topology", "error", f"{result.target} on {result.topology}: {reason['message']}",
        reason["remedy"], source, reason["rule"],
    )  # fmt: skip


def _summarize(result: CompileResult) -> str:
    if result.report is None:
        return f"{result.target} cannot be compiled for {result.topology}"
    if result.fits:
        return f"{result.target} fits {result.topology}"
    return f"{result.target} does not fit {result.topology}"
