"""A model that cannot be traced: the line of code where it fails, the rule that finds it, and its remedy."""

import inspect
import linecache
import traceback
from typing import Any, Final, NamedTuple

import torch

from tpuport.errors import PortError
from tpuport.lint.catalogue import Entry, entry
from tpuport.lint.findings import Finding
from tpuport.topology.failures import linted, patched
from tpuport.topology.failures.classes import Class, class_of, first_line
from tpuport.topology.failures.expressions import rule_of
from tpuport.topology.failures.frames import Frame, Way, way_to
from tpuport.topology.report import Failure, Source

# Errors about values: tracing has none, and every rule that stops a trace may be what finds it.
_VALUES: Final = ("value", "mask")
# Raised by Python itself or by the code, these are no concern of tracing.
_PYTHON: Final = (
    KeyError, IndexError, NameError, AttributeError, ZeroDivisionError, TypeError, ValueError, ImportError,
    AssertionError, NotImplementedError, RecursionError, StopIteration, OSError, RuntimeError,
)  # fmt: skip


class CannotTrace(PortError):
    """A model's code that cannot be traced.

    Attributes:
        failure: the line, the rule and the remedy.
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        place = failure.source
        where = f"{place.file}, line {place.line}, in {place.function}" if place else None
        rule = f"{failure.rule}: " if failure.rule else ""
        super().__init__(
            failure.message, where=where, fix=f"{rule}{failure.remedy}" if failure.remedy else None
        )

    def __reduce__(self) -> tuple[type["CannotTrace"], tuple[Failure]]:
        return CannotTrace, (self.failure,)


class _Verdict(NamedTuple):
    """What is known of a failure: the finding of the linter, or the rule alone."""

    rule: str | None = None
    finding: Finding | None = None
    line: Source | None = None


def explain(error: BaseException, model: Any) -> Failure:
    """Why a model's code could not be traced.

    The line is that of the innermost call of the user's code or a model's. The rule is that of the linter's finding
    there, else the one about what is written there, else that of the finding nearest on the way to it, else the one
    about errors of this class. An error that has nothing to do with tracing has no rule, and is said to be one.

    Args:
        error: what tracing raised; the way to it is in its traceback, and those of its causes.
        model: the module that was traced, or a function.
    """
    way = way_to(error)
    kind = class_of(way.error)
    verdict = _verdict(way, kind, model)
    frames = way.of_level(2) or way.of_level(1)
    place = frames[0].source() if frames else verdict.line
    about = entry(verdict.rule) if verdict.rule else None
    remedy = patched.remedy(way.frames) or _remedy(kind, verdict, about, way)
    return Failure(
        kind="trace",
        message=f"{_subject(place, model)} {_happened(kind, verdict, about, way)}{_elsewhere(place, verdict, way)}",
        source=place,
        rule=verdict.rule,
        remedy=remedy,
        traceback="".join(traceback.format_exception(error)),
    )


def _verdict(way: Way, kind: Class, model: Any) -> _Verdict:
    """The rule that is about the failure."""
    frames = way.of_level(1)
    files = [frame.file for frame in frames]
    if not frames:
        files = [one for one in (_file_of(model),) if one]
    if kind.name in ("shape", "other") and not (kind.name == "other" and _machinery_failed(way)):
        return _Verdict()
    found = linted.findings(files)
    if kind.name in _VALUES or kind.name in ("other", "operator", "cuda"):
        near = _near(frames, found, kind)
        if near.rule or kind.name in ("other", "cuda"):
            return near
    if kind.far:
        far = _far(frames, found, kind)
        if far.rule:
            return far
    return _Verdict(kind.rule)


def _near(frames: list[Frame], found: list[Finding], kind: Class) -> _Verdict:
    """By what stands where the trace failed, or on the way there."""
    for depth, frame in enumerate(frames):
        finding = linted.at(frame, found, kind.far if kind.name == "cuda" else None)
        if finding is not None:
            return _Verdict(finding.rule, finding)
        written = rule_of(frame, mask=kind.name == "mask") if kind.name in _VALUES and depth == 0 else None
        if written:
            return _Verdict(written)
        if kind.name == "other":
            break
    return _Verdict()


def _far(frames: list[Frame], found: list[Finding], kind: Class) -> _Verdict:
    """By a finding elsewhere in the files that were on the way: the nearest above, in the same function first."""
    functions = {(frame.file, frame.function) for frame in frames}
    fitting = [finding for finding in found if finding.rule in kind.far]
    if kind.name == "operator":  # inference mode: only where it is around the operator
        fitting = [finding for finding in fitting if (finding.path, finding.function) in functions]
    if kind.name == "port" and "on the host" not in kind.what:
        fitting = []
    fitting.sort(key=lambda finding: ((finding.path, finding.function) not in functions, finding))
    if not fitting:
        return _Verdict()
    first = fitting[0]
    text = linecache.getline(first.path, first.line).strip()
    return _Verdict(first.rule, first, Source(first.path, first.line, first.function, text))


def _machinery_failed(way: Way) -> bool:
    """Whether the error was raised inside of torch or jax, and not by Python or by the code in a line of its own."""
    return not way.frames or way.frames[-1].level == 0


def _file_of(model: Any) -> str | None:
    cls = model if inspect.isfunction(model) else type(model)
    try:
        return inspect.getsourcefile(cls)
    except TypeError:
        return None


def _subject(place: Source | None, model: Any) -> str:
    if place is not None and not place.function.startswith("<"):
        return place.function.replace(".<locals>", "")
    return getattr(model, "__name__", None) or type(model).__name__


def _happened(kind: Class, verdict: _Verdict, about: Entry | None, way: Way) -> str:
    if verdict.finding is not None and verdict.line is None:
        return f"cannot be traced: {verdict.finding.reason}"
    if kind.what:
        return f"cannot be traced: {kind.what}"
    if about is not None:
        return f"cannot be traced: {about.reason}"
    name = type(way.error).__name__
    if _is_plain(way):
        return f"fails with {name}: {first_line(way.error)}; this is an error of the code itself, not of tracing it"
    return f"cannot be traced: {name}: {first_line(way.error)}"


def _remedy(kind: Class, verdict: _Verdict, about: Entry | None, way: Way) -> str:
    if verdict.finding is not None:
        return verdict.finding.remedy
    if kind.remedy:
        return kind.remedy
    if about is not None:
        return about.remedy
    if _is_plain(way):
        return "correct the code: it fails in the same way in torch, model(**inputs)"
    return "see what Python says with --traceback"


def _is_plain(way: Way) -> bool:
    """Whether torch would fail as well: the error comes from a line of the code's own, and is not about a tensor."""
    if not isinstance(way.error, _PYTHON) or not way.frames or way.frames[-1].level == 0:
        return isinstance(way.error, AttributeError) and _missing_attribute(way)
    return "Tensor" not in str(way.error) and "racer" not in str(way.error)


def _missing_attribute(way: Way) -> bool:
    """Whether a module was asked for an attribute that it lacks: torch raises that from a function of its own."""
    last = way.frames[-1] if way.frames else None
    return (
        last is not None
        and last.module == torch.nn.modules.module.__name__
        and last.function == "Module.__getattr__"
    )


def _elsewhere(place: Source | None, verdict: _Verdict, way: Way) -> str:
    """Where the rule's finding is, if not where the trace failed."""
    finding = verdict.finding
    if finding is None or place is None:
        return ""
    if verdict.line is not None:
        same = verdict.line.file == place.file
        return (
            f" (see line {verdict.line.line}{'' if same else f' of {verdict.line.file}'}: {finding.reason})"
        )
    return ""
