"""A model that cannot be traced: the line of code where it fails, the rule that finds it, and its remedy."""

import ast
import dataclasses
import inspect
import linecache
import traceback
from typing import Any, Final, NamedTuple

import torch

from tpuport.errors import PortError
from tpuport.lint.findings import Finding
from tpuport.lint.rule_catalogue import Entry, entry_for
from tpuport.topology.compile_report import Failure, Source
from tpuport.topology.failures import compiler, eager, linted, patched
from tpuport.topology.failures.classes import TRANSFORM, Class, class_of, code_remedy, first_line, host
from tpuport.topology.failures.eager import Asked
from tpuport.topology.failures.expressions import place_of, rule_of
from tpuport.topology.failures.frames import Frame, Way, level_of, way_to

# Errors about values: tracing has none, and every rule that stops a trace may be what finds it.
_VALUES: Final = ("value", "mask")
# Errors of these classes may be torch's own as well, or those of a tensor on the host.
_ASKED: Final = ("shape", "other", "value")
# Of how many files the linter is asked at most, where it has to look for the line itself.
_FILES: Final = 12
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


def in_code(error: BaseException) -> bool:
    """Whether an error that tracing raised came out of the user's code or a model's, and so has a line in it."""
    return any(frame.level for frame in way_to(error).frames)


class _Verdict(NamedTuple):
    """What is known of a failure: the finding of the linter, or the rule alone."""

    rule: str | None = None
    finding: Finding | None = None
    line: Source | None = None


def explain(error: BaseException, model: Any) -> Failure:
    """Why a model's code could not be traced, or lowered.

    The line is that of the innermost call of the user's code or a model's. The rule is that of the linter's finding
    there, else the one about what is written there, else that of the finding nearest on the way to it, else the one
    about errors of this class. An error that has nothing to do with tracing has no rule, and is said to be one: torch
    is asked whether it takes the operation that failed. One on whose way is no code of the model's is a defect.

    Args:
        error: what tracing raised; the way to it is in its traceback, and those of its causes.
        model: the module that was traced, or a function.
    """
    way = way_to(error)
    whole = "".join(traceback.format_exception(error))
    known = None
    if _machinery_failed(way) and not isinstance(way.error, PortError):
        known = compiler.recognised(way)
    if known is not None:
        return dataclasses.replace(known, traceback=whole)
    kind = TRANSFORM if _transformed(way) else class_of(way.error)
    asked = eager.asked(way) if kind.name in _ASKED else None
    if asked is not None and asked.host is not None:
        kind = host(asked.operation)
    elif kind.name == "value":
        asked = None
    verdict = _Verdict() if asked and asked.refused else _verdict(way, kind, model)
    frames = way.of_level(2) or way.of_level(1)
    if kind.name == "other" and not frames and asked is None:
        return _defect(way, model, whole)
    place = frames[0].source() if frames else verdict.line or _forward(model)
    about = entry_for(verdict.rule) if verdict.rule else None
    said = _happened(kind, verdict, about, way, asked)
    remedy = patched.remedy(way.frames) or _remedy(kind, verdict, about, way, asked)
    return Failure(
        kind="trace",
        message=f"{_subject(place, model)} {said}{_elsewhere(place, verdict)}",
        source=place,
        rule=verdict.rule,
        remedy=remedy,
        traceback=whole,
    )


def _defect(way: Way, model: Any, whole: str) -> Failure:
    """Of an error that no code of the model's has a part in."""
    name = getattr(model, "__name__", None) or type(model).__name__
    raised = f"{type(way.error).__name__}: {first_line(way.error)}"
    return Failure(
        kind="defect",
        message=f"tracing or lowering {name} ended with {raised}; no code of the model's is on the way to it, so this "
        "is a defect of tpuport or of jax",
        remedy="report it to tpuport, with what --traceback shows",
        traceback=whole,
    )


def _transformed(way: Way) -> bool:
    """Whether torch.func runs the model's code, or what is below it."""
    return any(frame.module.startswith("torch._functorch") for frame in way.frames)


def _forward(model: Any) -> Source | None:
    """Where a model's own forward begins."""
    function = inspect.unwrap(type(model).forward) if isinstance(model, torch.nn.Module) else model
    code = getattr(function, "__code__", None)
    if code is None or not level_of(code.co_filename, str(getattr(function, "__module__", ""))):
        return None
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return Source(code.co_filename, code.co_firstlineno, code.co_qualname, text)


def _verdict(way: Way, kind: Class, model: Any) -> _Verdict:
    """The rule that is about the failure."""
    frames = way.of_level(1)
    if not (kind.near or kind.far) or (kind.name == "other" and not _machinery_failed(way)):
        return _Verdict()
    found = linted.findings([frame.file for frame in frames] or _files_of(model))
    for depth, frame in enumerate(frames if kind.near else ()):
        finding = linted.at(frame, found, kind.near)
        if finding is not None:
            return _Verdict(finding.rule, finding)
        if kind.name not in _VALUES:
            break
        if depth == 0 and (written := rule_of(frame, mask=kind.name == "mask")):
            return _Verdict(written)
    return _far(frames, found, kind) or _Verdict(kind.rule)


def _far(frames: list[Frame], found: list[Finding], kind: Class) -> _Verdict | None:
    """By a finding elsewhere in the files that were on the way: the nearest above, in the same function first."""
    functions = {(frame.file, frame.function) for frame in frames}
    fitting = [finding for finding in found if finding.rule in kind.far]
    if kind.name == "operator":  # inference mode: only where it is around the operator
        fitting = [finding for finding in fitting if (finding.path, finding.function) in functions]
    if kind.name == "port" and "on the host" not in kind.what:
        fitting = []
    fitting.sort(key=lambda finding: ((finding.path, finding.function) not in functions, finding))
    if not fitting:
        return None
    first = fitting[0]
    text = linecache.getline(first.path, first.line).strip()
    return _Verdict(first.rule, first, Source(first.path, first.line, first.function, text))


def _machinery_failed(way: Way) -> bool:
    """Whether the error was raised inside of torch or jax, and not by Python or by the code in a line of its own."""
    return not way.frames or way.frames[-1].level == 0


def _files_of(model: Any) -> list[str]:
    """The files of a model's own classes, and of its parts': where no call of its code is known."""
    parts = [type(part) for part in model.modules()] if isinstance(model, torch.nn.Module) else [model]
    found = {}
    for part in dict.fromkeys(parts):
        try:
            found[inspect.getsourcefile(part)] = str(getattr(part, "__module__", ""))
        except TypeError:
            continue
    return [file for file, module in found.items() if file and level_of(file, module)][:_FILES]


def _subject(place: Source | None, model: Any) -> str:
    if place is not None and not place.function.startswith("<"):
        return place.function.replace(".<locals>", "")
    return getattr(model, "__name__", None) or type(model).__name__


def _happened(kind: Class, verdict: _Verdict, about: Entry | None, way: Way, asked: Asked | None) -> str:
    if asked is not None and asked.refused is not None:
        return _own_error(asked.refused, asked.operation)
    if verdict.finding is not None and verdict.line is None:
        return f"cannot be traced: {verdict.finding.reason}"
    if asked is not None and asked.taken:
        return f"cannot be traced: {asked.operation}, which torch takes, ends with {_raised(way.error)}"
    if kind.what:
        return f"cannot be traced: {kind.what}"
    if about is not None:
        return f"cannot be traced: {about.reason}"
    if _is_plain(way):
        return _own_error(way.error)
    return f"cannot be traced: {_raised(way.error)}"


def _own_error(error: BaseException, operation: str = "") -> str:
    at = f", in {operation}" if operation else ""
    return f"fails with {_raised(error)}{at}; this is an error of the code itself, not of tracing it"


def _raised(error: BaseException) -> str:
    said = first_line(error)
    if isinstance(error, AttributeError | TypeError):  # a view is a tensor, to whoever wrote the code
        said = said.replace("'View'", "'Tensor'")
    return f"{type(error).__name__}: {said}"


def _remedy(kind: Class, verdict: _Verdict, about: Entry | None, way: Way, asked: Asked | None) -> str:
    if asked is not None and asked.refused is not None:
        return code_remedy(first_line(asked.refused))
    if verdict.finding is not None:
        return verdict.finding.remedy
    if asked is not None and asked.taken:
        return (
            "write it with other operations; this is a limit of torchax or a defect of tpuport (--traceback)"
        )
    if kind.remedy:
        return kind.remedy
    if about is not None:
        return about.remedy
    if _is_plain(way):
        return code_remedy(first_line(way.error))
    return (
        "run it in torch, model(**inputs): correct the code where that fails too; where it does not, this is a limit "
        "of torchax or a defect of tpuport (--traceback)"
    )


def _is_plain(way: Way) -> bool:
    """Whether torch would fail as well: the error comes from a line of the code's own, and is not about a tensor."""
    frames = list(way.frames)
    while frames and _is_plumbing(frames[-1]):
        frames.pop()
    if not isinstance(way.error, _PYTHON) or not frames or frames[-1].level == 0:
        return False
    if isinstance(way.error, AttributeError) and isinstance(way.error.obj, torch.Tensor):
        return not hasattr(torch.Tensor, way.error.name or "")
    if isinstance(place_of(frames[-1]), ast.Raise):
        return True
    return "Tensor" not in str(way.error) and "racer" not in str(way.error)


def _is_plumbing(frame: Frame) -> bool:
    """Whether a call is one of torch's that only hands on: what fails in it, is what the line above asks for."""
    if frame.module == torch.nn.modules.module.__name__:
        return True
    return frame.function.rpartition(".")[2] == "__getattr__" and frame.module.partition(".")[0] == "torch"


def _elsewhere(place: Source | None, verdict: _Verdict) -> str:
    """Where the rule's finding is, if not where the trace failed."""
    finding = verdict.finding
    if finding is None or place is None or verdict.line == place:
        return ""
    if verdict.line is not None:
        same = verdict.line.file == place.file
        return (
            f" (see line {verdict.line.line}{'' if same else f' of {verdict.line.file}'}: {finding.reason})"
        )
    return ""
