"""Findings about the lines that need a value while they are traced: all of them, from
one run.
"""

import torch

from tpuport import trace_errors
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.recording import Recording


def findings(run: Recording, model: torch.nn.Module) -> list[CheckFinding]:
    """One finding for each line and function of the calls that could not be traced."""
    errors: dict[tuple[str, int, str], Exception] = {}
    for key, error in run.unanswerable.items():
        # Without the number of the call: a line in a loop is one finding.
        errors.setdefault((key.file, key.line, key.function), error)
    return [_finding(error, model) for error in errors.values()]


def _finding(error: Exception, model: torch.nn.Module) -> CheckFinding:
    failure = trace_errors.explain(error, model)
    return CheckFinding(
        "value", "values", "error", failure.message, failure.remedy, failure.source, failure.rule,
        details={"error": trace_errors.first_line(error)},
    )  # fmt: skip
