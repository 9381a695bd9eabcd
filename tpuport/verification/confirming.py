"""The linter's findings held against a run: confirmed, not reached, or harmless
there.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, get_args

import torch

from tpuport.base.plurals import count_noun
from tpuport.lint.findings import Finding, Severity
from tpuport.trace_errors import Source
from tpuport.trace_errors.libraries import is_installed, package_file
from tpuport.trace_errors.lint_matches import collect_findings
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.executed_lines import ExecutedLines

Mark = Literal["confirmed", "not reached", "harmless"]
# Rules about lines that end a trace; a run on the device shows whether they do.
_STOPPING: Final = ("TPU1", "TPU2")
_CUDA: Final = "TPU3"
_SUMMARIZED: Final = ("confirmed", "harmless", "not reached")


def mark(
    finding: Finding, executed: ExecutedLines, checked: Iterable[CheckFinding]
) -> Mark:
    """What a run says about a finding of the linter.

    Args:
        executed: the lines that ran on the device.
        checked: the findings of the check of that run.
    """
    if any(is_about(finding, other.source) for other in checked):
        return "confirmed"
    file = str(Path(finding.path).absolute())
    if not executed.runs(file, finding.line, finding.end_line):
        return "not reached"
    return "harmless"


def describe_marks(marks: Mapping[Finding, Mark], target: str) -> str:
    """A line for each finding, for a terminal."""
    lines = [
        f"  {finding.path}:{finding.line}:{finding.column} {finding.rule} {result}"
        for finding, result in marks.items()
    ]
    counts = Counter(marks.values())
    total = ", ".join(f"{counts[result]} {result}" for result in get_args(Mark))
    return "\n".join([f"on the run of {target}:", *lines, total]) + "\n"


def reached_findings(executed: ExecutedLines, model: torch.nn.Module) -> list[Finding]:
    """What the linter finds in functions that ran: the user's, and those of packages
    with classes of the model.
    """
    findings = _file_findings(executed, model)
    return [
        finding
        for finding in findings
        if (finding.path, finding.function) in executed.functions
    ]


def cuda_errors(executed: ExecutedLines, model: torch.nn.Module) -> list[Finding]:
    """What the linter finds about CUDA in the files with functions that ran: a run ends
    at the first of it.
    """
    return list(filter(is_about_cuda, error_findings(executed, model)))


def is_about_cuda(finding: Finding) -> bool:
    """Whether a finding of the linter is about code that needs CUDA."""
    return finding.rule.startswith(_CUDA)


def error_findings(executed: ExecutedLines, model: torch.nn.Module) -> list[Finding]:
    """The linter's errors in the files with functions that ran, for a run that ended
    early.

    Of installed packages only those about CUDA: their other code may never run.
    """
    return [
        finding
        for finding in _file_findings(executed, model)
        if finding.severity == Severity.ERROR
        and (is_about_cuda(finding) or not is_installed(finding.path))
    ]


def as_errors(findings: Iterable[Finding]) -> list[CheckFinding]:
    """The linter's findings as those of a run in torch."""
    return [
        CheckFinding(
            "lint", "torch", "error", f"{finding.function}: {finding.reason}", finding.remedy, _source(finding),
            finding.rule,
        )
        for finding in findings
    ]  # fmt: skip


def is_about(finding: Finding, source: Source | None) -> bool:
    """Whether a finding of the linter is about a line."""
    if source is None:
        return False
    # The linter names files as its user does, and Python by their whole path.
    file = str(Path(finding.path).absolute())
    return source.file == file and source.line in range(
        finding.line, finding.end_line + 1
    )


def _file_findings(executed: ExecutedLines, model: torch.nn.Module) -> list[Finding]:
    packages = {type(module).__module__.partition(".")[0] for module in model.modules()}
    # Any other package that ran, such as sympy, which torch calls, is not part of the
    # model, and may be large.
    files = [
        file
        for file in executed.lines
        if not is_installed(file) or package_file(file).package in packages
    ]
    return collect_findings(sorted(files))


def _is_advice(finding: Finding) -> bool:
    """Whether a finding is about what no run shows, in code that its user can
    change.
    """
    stops = finding.severity == Severity.ERROR or finding.rule.startswith(_STOPPING)
    return not stops and not is_installed(finding.path)


def _source(finding: Finding) -> Source:
    return Source.read(finding.path, finding.line, finding.function)


def lint_findings(
    reached: list[Finding], executed: ExecutedLines, checked: list[CheckFinding]
) -> tuple[list[CheckFinding], str]:
    """Notes about what no run shows, such as speed; and in words what the run shows
    about all findings.
    """
    marks = {finding: mark(finding, executed, checked) for finding in reached}
    advice = [
        CheckFinding(
            "lint", "lint", "note", f"{finding.function}: {finding.reason}", finding.remedy,
            _source(finding), finding.rule,
        )
        for finding, result in marks.items()
        if result == "harmless" and _is_advice(finding)
    ]  # fmt: skip
    if not reached:
        return advice, ""
    # In a fixed order, and without those that there are none of: stages have one line
    # each.
    counts = Counter(marks.values())
    shown = [f"{counts[result]} {result}" for result in _SUMMARIZED if counts[result]]
    return advice, f"{count_noun(len(reached), 'finding')}: {', '.join(shown)}"
