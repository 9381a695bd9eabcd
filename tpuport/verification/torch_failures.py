"""Why a model fails in torch itself, and which of its lines name CUDA."""

import dataclasses
from typing import Final

import torch

from tpuport import trace_errors
from tpuport.gpu import GpuShim
from tpuport.gpu.replaced_calls import Call
from tpuport.lint.findings import Finding
from tpuport.trace_errors import Source
from tpuport.trace_errors.error_kinds import kind_of
from tpuport.trace_errors.libraries import Owner
from tpuport.trace_errors.tracebacks import path_to
from tpuport.verification import comparing, confirming, model_runs
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.executed_lines import ExecutedLines
from tpuport.verification.model_runs import Arguments
from tpuport.verification.recording import ModuleCall

_INPUTS: Final = "correct the inputs that target() returns, or the code if they are right: tpuport has no part in it"
_LINE: Final = (
    "correct the line, or what it calls: it fails in torch, and tpuport has no part in it. The inputs that target() "
    "returns are to blame only if it is right for others"
)


def needs_cuda(error: Exception) -> bool:
    """Whether an error says that there is no CUDA."""
    return kind_of(path_to(error).error).name == "cuda"


def findings(
    error: Exception,
    model: torch.nn.Module,
    arguments: Arguments,
    executed: ExecutedLines,
) -> list[CheckFinding]:
    """A finding about the line that fails, and one for each line of the same files that
    a machine without CUDA refuses.

    Args:
        executed: the lines that ran before.
    """
    path = path_to(error)
    frames = path.frames_of(Owner.MODEL)
    source = frames[0].source() if frames else None
    if needs_cuda(error):
        return _cuda_findings(error, source, model, executed)
    raised = f"{type(error).__name__}: {trace_errors.first_line(error)}"
    message = f"the model fails in torch itself: {raised}{path.end_in_helper()}"
    remedy = _LINE
    signature = model_runs.refusing_signature(model, arguments)
    if signature:
        message += f"; it takes forward{signature}"
        source = comparing.forward_line(model, ModuleCall("", 0))
    refusals = model_runs.refusals_of(model, arguments)
    if signature or refusals.gets_inputs:
        remedy = _INPUTS
    failure = CheckFinding("failure", "torch", "error", message, remedy, source)
    errors = confirming.cuda_errors(executed, model)
    if signature or refusals.error is not None:
        return [failure, *confirming.as_errors(errors)]
    # The code itself has refused to go on.
    return _with_linted(failure, errors)


def _cuda_findings(
    error: Exception,
    source: Source | None,
    model: torch.nn.Module,
    executed: ExecutedLines,
) -> list[CheckFinding]:
    """A finding about the line that needs CUDA, and one for each other that the run
    would have come to.
    """
    failure = CheckFinding(
        "failure", "torch", "error",
        f"the model fails in torch on the CPU: {type(error).__name__}: {trace_errors.first_line(error)}",
        "let it run on the CPU, without .cuda() and with tensors on the device of its inputs", source,
    )  # fmt: skip
    return _with_linted(failure, confirming.error_findings(executed, model))


def _with_linted(failure: CheckFinding, errors: list[Finding]) -> list[CheckFinding]:
    """The failure and the linter's errors, as one item about the line of both."""
    about_line = [
        finding
        for finding in errors
        if confirming.is_about(finding, failure.source)
        and confirming.is_about_cuda(finding)
    ]
    if about_line:
        # The linter's words for it: what the line needs is known.
        reason = f"{failure.message}: {about_line[0].reason}"
        failure = dataclasses.replace(
            failure,
            message=reason,
            remedy=about_line[0].remedy,
            rule=about_line[0].rule,
        )
    others = [
        finding
        for finding in errors
        if finding not in about_line or finding.rule != failure.rule
    ]
    return [failure, *confirming.as_errors(others)]


def shim_findings(
    shim: GpuShim, executed: ExecutedLines, model: torch.nn.Module
) -> list[CheckFinding]:
    """A warning for each line that ran with the GPU shim, and would not have run
    without.
    """
    linted = [
        finding
        for finding in confirming.error_findings(executed, model)
        if confirming.is_about_cuda(finding)
    ]
    warnings = []
    for call in shim.calls:
        source = executed.source(call.file, call.line)
        rules = [finding for finding in linted if confirming.is_about(finding, source)]
        remedy = "use the device of the inputs"
        if rules:
            remedy = rules[0].remedy
        warnings.append(
            CheckFinding(
                "cuda", "torch", "warning", _describe(call),
                f"{remedy}; or run the model inside of `with tpuport.gpu_shim(device=\"jax\"):`, and leave the line",
                source, rules[0].rule if rules else None,
            )
        )  # fmt: skip
    return warnings


def _describe(call: Call) -> str:
    message = f"this line names CUDA, and ran here with tpuport.gpu_shim: {call.name} became {call.became}"
    if "autocast" in call.name:
        # On the device it would be in force, and results differ by it from torch's.
        message += ", so that its lower precision was not checked"
    return message
