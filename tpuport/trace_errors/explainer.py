"""Why a model's code cannot be traced: the line where it fails, the rule that finds it,
and its remedy.
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import traceback
from typing import Any, Final, NamedTuple

import torch

from tpuport.errors import PortError
from tpuport.lint.findings import Finding
from tpuport.lint.rule_catalogue import entry_for
from tpuport.trace_errors import lint_matches, refusals, torch_trial
from tpuport.trace_errors.error_kinds import (
    TRANSFORM,
    ErrorKind,
    code_remedy,
    host_kind,
    kind_of,
)
from tpuport.trace_errors.failure import Source, TraceFailure, first_line, remedies
from tpuport.trace_errors.libraries import Owner, owner_of
from tpuport.trace_errors.torch_trial import Trial
from tpuport.trace_errors.tracebacks import ErrorPath, Frame, path_to

# Errors about values: tracing has none, and every rule that stops a trace may be what
# finds them.
_VALUE_KINDS: Final = ("value", "mask")
# Errors of these kinds may be torch's own as well, or those of a tensor on the host.
_TRIED_KINDS: Final = ("shape", "other", "value")
_NO_TRIAL: Final = Trial("")  # of an operation that is not known, or that was not tried
_MOST_FILES: Final = 12  # that are linted if the linter has to look for the line itself
# Raised by Python itself or by the code, these have nothing to do with tracing.
_PYTHON_ERRORS: Final = (
    KeyError, IndexError, NameError, AttributeError, ZeroDivisionError, TypeError, ValueError, ImportError,
    AssertionError, NotImplementedError, RecursionError, StopIteration, OSError, RuntimeError,
)  # fmt: skip


class _RuleMatch(NamedTuple):
    """What is known about the rule: the linter's finding, or the rule alone.

    Attributes:
        finding: None if the rule follows from the kind of the error.
        distant_line: of the finding, if it is not where tracing failed.
    """

    rule: str | None = None
    finding: Finding | None = None
    distant_line: Source | None = None


class _Explanation(NamedTuple):
    summary: str
    remedy: str


def explain(error: BaseException, model: Any) -> TraceFailure:
    """Why a model's code could not be traced, or lowered.

    The line is that of the innermost call of the user's code or a model's. The rule is
    that of the linter's finding there, else the one about what is written there, else
    that of the finding nearest on the way to it, else the one about errors of this
    kind. An error that has nothing to do with tracing has no rule, and the message says
    that it is one: torch is asked whether it accepts the operation that failed. If no
    code of the model's is on the way to the error, it is a defect.

    Args:
        error: what tracing raised; the path to it is in its traceback, and those of its
            causes.
        model: the module that was traced, or a function.
    """
    path = path_to(error)
    failure = None
    # tpuport's own errors quote what jax has said, and say it better.
    if path.is_raised_by_library and not isinstance(path.error, PortError):
        failure = refusals.known_refusal(path)
    failure = failure or _Diagnosis(path, model).failure()
    return dataclasses.replace(
        failure, traceback="".join(traceback.format_exception(error))
    )


# A model called with other weights, which transforms nothing.
_FUNCTIONAL_CALL = "torch._functorch.functional_call"


class _Diagnosis:
    """One error, and what is found out about it step by step."""

    def __init__(self, path: ErrorPath, model: Any) -> None:
        self.path = path
        self.error = path.error
        self.model = model
        self.kind, self.trial = _classify(path)
        self.match = _RuleMatch()
        # An error of the code itself has no rule.
        if self.trial.error is None:
            self.match = self._match_rule()

    def failure(self) -> TraceFailure:
        frames = self.path.frames_of(Owner.MODEL) or self.path.frames_of(
            Owner.MODEL_LIBRARY
        )
        if self.kind.name == "other" and not frames and not self.trial.operation:
            return self._defect()
        sources = (frame.source() for frame in frames)
        source = next(sources, self.match.distant_line) or _forward_source(self.model)
        explanation = self._explanation()
        calls = [f"{frame.module}:{frame.function}" for frame in self.path.frames]
        known_remedies = (find_remedy(calls) for find_remedy in remedies)
        return TraceFailure(
            kind="trace",
            message=f"{self._subject(source)} {explanation.summary}{self._see_also(source)}"
            f"{self.path.end_in_helper()}",
            source=source,
            rule=self.match.rule,
            remedy=next(filter(None, known_remedies), explanation.remedy),
        )

    def _defect(self) -> TraceFailure:
        """For an error that no code of the model's has a part in."""
        raised = f"{type(self.error).__name__}: {first_line(self.error)}"
        return TraceFailure(
            kind="defect",
            message=f"tracing or lowering {_model_name(self.model)} ended with {raised}; no code of the model's is on "
            "the way to it, so this is a defect of tpuport or of jax",
            remedy="report it to tpuport, with what --traceback shows",
        )

    def _match_rule(self) -> _RuleMatch:
        """The rule about the failure."""
        kind = self.kind
        # Python's own errors in the model's code are about the code.
        is_own_error = kind.name == "other" and not self.path.is_raised_by_library
        if is_own_error or not (kind.near_rules or kind.far_rules):
            return _RuleMatch()
        frames = self.path.frames_of(Owner.MODEL_LIBRARY)
        findings = lint_matches.collect_findings(
            [frame.file for frame in frames] or _files_of(self.model)
        )
        near = self._match_nearby(frames, findings)
        return near or self._match_afar(frames, findings) or _RuleMatch(kind.rule)

    def _match_nearby(
        self, frames: list[Frame], findings: list[Finding]
    ) -> _RuleMatch | None:
        """A rule about the failing line; for errors about values, also about the calls
        that led to it.
        """
        is_about_values = self.kind.name in _VALUE_KINDS
        for frame in frames:
            finding = lint_matches.match_frame(frame, findings, self.kind.near_rules)
            if finding is not None:
                return _RuleMatch(finding.rule, finding)
            if not is_about_values:
                return None
            # What is written on the failing line says more than a finding on the way to
            # it.
            if frame is frames[0]:
                rule = lint_matches.rule_written_at(
                    frame, is_mask=self.kind.name == "mask"
                )
                if rule is not None:
                    return _RuleMatch(rule)
        return None

    def _match_afar(
        self, frames: list[Frame], findings: list[Finding]
    ) -> _RuleMatch | None:
        """A finding elsewhere in the files on the way: one in a function on the way
        first.
        """
        functions = {(frame.file, frame.function) for frame in frames}
        matches = [
            finding for finding in findings if finding.rule in self.kind.far_rules
        ]
        near = [
            finding
            for finding in matches
            if (finding.path, finding.function) in functions
        ]
        candidates = near
        # Inference mode has to be around an operator to be the cause.
        if self.kind.name != "operator":
            candidates = near or matches
        finding = min(candidates, default=None)
        if finding is None:
            return None
        line = Source.read(finding.path, finding.line, finding.function)
        return _RuleMatch(finding.rule, finding, line)

    def _explanation(self) -> _Explanation:
        """What happened and what to do: the most specific that is known."""
        finding = self.match.finding
        if self.trial.error is not None:
            return _own_error(self.trial.error, f", in {self.trial.operation}")
        if finding is None:
            return self._explanation_by_kind()
        if self.match.distant_line is None:
            return _Explanation(f"cannot be traced: {finding.reason}", finding.remedy)
        # The finding is about another line, so that only its remedy goes with what
        # happened on this one.
        return self._explanation_by_kind()._replace(remedy=finding.remedy)

    def _explanation_by_kind(self) -> _Explanation:
        if self.trial.is_accepted:
            return _Explanation(
                f"cannot be traced: {self.trial.operation}, which torch accepts, ends with {_quote(self.error)}",
                "write it with other operations; this is a limit of torchax or a defect of tpuport (--traceback)",
            )
        if self.kind.summary:
            return _Explanation(
                f"cannot be traced: {self.kind.summary}", self.kind.remedy
            )
        if self.match.rule is not None:
            rule = entry_for(self.match.rule)
            return _Explanation(f"cannot be traced: {rule.reason}", rule.remedy)
        if _fails_in_torch_too(self.path):
            return _own_error(self.error)
        return _Explanation(
            f"cannot be traced: {_quote(self.error)}",
            "run it in torch, model(**inputs): correct the code if that fails too; if it does not, this is a limit of "
            "torchax or a defect of tpuport (--traceback)",
        )

    def _subject(self, source: Source | None) -> str:
        # Python names lambdas and modules in angle brackets.
        if source is None or source.function.startswith("<"):
            return _model_name(self.model)
        return source.function.replace(".<locals>", "")

    def _see_also(self, source: Source | None) -> str:
        """Where the rule's finding is, if not where tracing failed."""
        line, finding = self.match.distant_line, self.match.finding
        if source is None or line is None or finding is None or line == source:
            return ""
        file = "" if line.file == source.file else f" of {line.file}"
        return f" (see line {line.line}{file}: {finding.reason})"


def _classify(path: ErrorPath) -> tuple[ErrorKind, Trial]:
    """The kind of the error at the end of a path, and what torch says about the
    operation that raised it.
    """
    kind = kind_of(path.error)
    modules = {frame.module for frame in path.frames} - {_FUNCTIONAL_CALL}
    # Whether torch.func runs the model's code, or what is below it.
    if any(name.startswith("torch._functorch") for name in modules):
        kind = TRANSFORM
    if kind.name not in _TRIED_KINDS:
        return kind, _NO_TRIAL
    trial = torch_trial.try_operation(path) or _NO_TRIAL
    if trial.mixes_devices:
        return host_kind(trial.operation), trial
    # Torch has the values that tracing misses, so that its answer explains nothing.
    if kind.name == "value":
        return kind, _NO_TRIAL
    return kind, trial


def _own_error(error: BaseException, location: str = "") -> _Explanation:
    summary = f"fails with {_quote(error)}{location}; this is an error of the code itself, not of tracing it"
    return _Explanation(summary, code_remedy(first_line(error)))


def _quote(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _fails_in_torch_too(path: ErrorPath) -> bool:
    """Whether the error comes from a line of the code's own, and is not about a
    tensor.
    """
    error = path.error
    frames = list(path.frames)
    while frames and _passes_on(frames[-1]):
        frames.pop()
    if (
        not isinstance(error, _PYTHON_ERRORS)
        or not frames
        or frames[-1].owner == Owner.LIBRARY
    ):
        return False
    if isinstance(error, AttributeError) and isinstance(error.obj, torch.Tensor):
        return not hasattr(torch.Tensor, error.name or "")
    if isinstance(lint_matches.node_at(frames[-1]), ast.Raise):
        return True
    return "Tensor" not in str(error) and "racer" not in str(error)


def _passes_on(frame: Frame) -> bool:
    """Whether a call is one of torch's that only passes on what the line above asks
    for.
    """
    is_attribute_access = frame.function.endswith(
        "__getattr__"
    ) and frame.module.startswith("torch")
    return is_attribute_access or frame.module == torch.nn.modules.module.__name__


def _forward_source(model: Any) -> Source | None:
    """Where a model's own forward begins."""
    function = model
    if isinstance(model, torch.nn.Module):
        function = inspect.unwrap(type(model).forward)
    if isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None)
    if (
        code is None
        or owner_of(code.co_filename, str(function.__module__)) == Owner.LIBRARY
    ):
        return None
    return Source.start_of(code)


def _files_of(model: Any) -> list[str]:
    """The files of a model's own classes, and of its parts': for errors on whose way is
    no call of its code.
    """
    parts = [model]
    if isinstance(model, torch.nn.Module):
        parts = list(map(type, model.modules()))
    files: dict[str, None] = {}
    for part in dict.fromkeys(parts):
        file = None
        # Raised for a class that Python code does not define.
        with contextlib.suppress(TypeError):
            file = inspect.getsourcefile(part)
        if file and owner_of(file, str(part.__module__)) > Owner.LIBRARY:
            files[file] = None
    return list(files)[:_MOST_FILES]


def _model_name(model: Any) -> str:
    return getattr(model, "__name__", None) or type(model).__name__
