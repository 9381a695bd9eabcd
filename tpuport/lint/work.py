"""One file's share of the work, as it crosses processes and the cache."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tpuport.lint import source, suppressions
from tpuport.lint.diagnostics import tell
from tpuport.lint.findings import Finding
from tpuport.lint.settings import Settings
from tpuport.lint.suppressions import Suppressions


@runtime_checkable
class Analyses(Protocol):
    """What the engine needs of `analysis.Analyser`."""

    def analyse(self, source: source.SourceFile) -> Any:
        """An `analysis.Outcome`."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileResult:
    """What one file, taken as the start, gave.

    Attributes:
        path: absolute.
        lines: number of lines.
        findings: with absolute paths; some may lie in other files.
        dependencies: absolute paths that were looked at, absent ones too.
        entry_points: number of them.
        traced: `path:qualname` of functions that tracing reaches.
        suppressions: the file's own comments.
        failed: nothing was found out; the findings say why.
    """

    path: str
    lines: int
    findings: tuple[Finding, ...]
    dependencies: tuple[str, ...] = ()
    entry_points: int = 0
    traced: frozenset[str] = frozenset()
    suppressions: Suppressions = dataclasses.field(default_factory=Suppressions)
    failed: bool = False


def real_analyser(settings: Settings) -> Analyses:
    """The analysis with every rule that torchax's version leaves in force; settings choose among findings later."""
    from tpuport.lint.analysis import Analyser, Options
    from tpuport.lint.rules.registry import all_rules
    from tpuport.lint.settings import torchax_version

    rules = tuple(
        rule
        for rule in all_rules()
        if not rule.until or settings.torchax < torchax_version(rule.until, rule.id)
    )
    return Analyser(Options(rules, settings.torchax, settings.entry_points, settings.training))


# What makes an analyser out of settings. Tests put another one here.
make_analyser: Callable[[Settings], Analyses] = real_analyser


def analyse_file(analyser: Analyses, path: str) -> FileResult:
    """Read a file and analyse it; whatever goes wrong becomes a finding."""
    try:
        file = source.read(Path(path), path)
    except source.Unreadable as error:
        return FileResult(path, 0, (error.finding,), failed=True)
    try:
        outcome = analyser.analyse(file)
        comments = suppressions.find(file.text)
    except RecursionError:
        return crashed(path, "the code is nested too deeply to be followed", len(file.lines))
    except Exception as error:  # noqa: BLE001 - one file's failure must not end the others'
        return crashed(
            path, f"the analysis failed: {type(error).__name__}: {error} ({_where(error)})", len(file.lines)
        )
    return FileResult(
        path,
        _count(file),
        tuple(outcome.findings),
        tuple(outcome.dependencies),
        outcome.entry_points,
        frozenset(outcome.traced),
        comments,
    )


def crashed(path: str, reason: str, lines: int = 0) -> FileResult:
    """The result of a file on which the linter failed."""
    return FileResult(path, lines, (tell("TPU006", path, " ".join(reason.split())),), failed=True)


def _count(file: source.SourceFile) -> int:
    return len(file.lines) - (not file.lines[-1])


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        "unknown place"
        if trace is None
        else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    )
