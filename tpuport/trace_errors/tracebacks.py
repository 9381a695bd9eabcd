"""Tracebacks: which calls in one are the user's or the model's, and where in its line
each was.
"""

import functools
import itertools
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Final, NamedTuple

from tpuport.trace_errors.failure import Source
from tpuport.trace_errors.libraries import Owner, is_helper, owner_of

# jax raises these only to hold frames: those that it took out of another error, or,
# when lowering, those of tracing.
_FRAME_HOLDERS: Final = (
    "UnfilteredStackTrace",
    "SimplifiedTraceback",
    "JaxStackTraceBeforeTransformation",
)


class Frame(NamedTuple):
    """A call in a traceback, at the position of the expression that went wrong.

    Attributes:
        file: as Python knows it; module: its name; function: qualified.
        line, end_line: of the expression, from 1; column, end_column: of the same, from
            0, in bytes, None if Python does not know them.
        owner: whose code it is.
        python: the frame object, with its variables; several tracebacks may share it.
    """

    file: str
    module: str
    function: str
    line: int
    end_line: int
    column: int | None
    end_column: int | None
    owner: Owner
    python: FrameType

    def source(self) -> Source:
        """The line, as reports show it."""
        return Source.read(self.file, self.line, self.function)


class ErrorPath(NamedTuple):
    """The calls that led to an error.

    Attributes:
        error: the first one that was raised.
        frames: outermost first.
    """

    error: BaseException
    frames: tuple[Frame, ...]

    @property
    def is_raised_by_library(self) -> bool:
        """Whether the error was raised inside of torch or jax, and not by Python or by
        a line of the code itself.
        """
        return not self.frames or self.frames[-1].owner == Owner.LIBRARY

    def end_in_helper(self) -> str:
        """Where the error was raised, if the model's code has called an installed
        package that is none of models: " (it ended in ...)".
        """
        helpers = [frame for frame in self.frames if frame.owner > Owner.LIBRARY]
        if not helpers or not self.frames_of(Owner.MODEL):
            return ""
        last = helpers[-1]
        if not is_helper(last.file, last.module.partition(".")[0]):
            return ""
        return f" (it ended in {last.file}:{last.line})"

    def frames_of(self, owner: Owner) -> list[Frame]:
        """The calls of code with this owner or a later one, innermost first."""
        return [frame for frame in reversed(self.frames) if frame.owner >= owner]


def path_to(error: BaseException) -> ErrorPath:
    """The way to the first error: if one was raised because of another, to that other
    one.

    An error that a handler in the user's code met with one of its own is not the cause:
    there the handler failed.
    """
    frames = list(_read_frames(error.__traceback__))
    seen = {id(error)}
    while (earlier := _earlier(error, frames)) is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        inner = list(_read_frames(earlier.__traceback__))
        if _holds_frames(earlier):
            # They may begin with the first call of the process.
            inner = _without_callers(inner)
        frames = _join(frames, inner)
        if not _holds_frames(earlier):
            error = earlier
    return ErrorPath(error, tuple(_without_callers(frames)))


def _join(outer: list[Frame], inner: list[Frame]) -> list[Frame]:
    """The frames of an error and of its cause, whose traceback starts in a frame that
    caught it.
    """
    if not inner:
        return outer
    # Both tracebacks have the frame that caught the cause: the cause's has the line
    # that failed.
    before = itertools.takewhile(
        lambda frame: frame.python is not inner[0].python, outer
    )
    return [*before, *inner]


def _without_callers(frames: list[Frame]) -> list[Frame]:
    """Drop the calls that led to the tracing: those before the first of tpuport's or
    jax's own.
    """
    packages = [frame.module.partition(".")[0] for frame in frames]
    positions = (
        index
        for index, package in enumerate(packages)
        if package in ("tpuport", "jax", "jaxlib")
    )
    start = next(positions, 0)
    last_of_model = max(
        (index for index, frame in enumerate(frames) if frame.owner > Owner.LIBRARY),
        default=-1,
    )
    # If the user's code calls torch, and torch calls jax, that code is what is traced.
    calls_torch = packages[last_of_model + 1 :][:1] in (["torch"], ["torchax"])
    if 0 <= last_of_model < start and calls_torch:
        return frames
    return frames[start:]


def _earlier(error: BaseException, frames: list[Frame]) -> BaseException | None:
    """The error that this one was raised because of; None if there is none."""
    if error.__cause__ is not None:
        return error.__cause__
    context = error.__context__
    if context is None or error.__suppress_context__ or _holds_frames(context):
        return None
    catcher = next(_read_frames(context.__traceback__), None)
    if catcher is None:
        return None
    # Which frame raised this error: the handler's own, or another that the handler
    # called.
    raisers = [frame.python for frame in frames[-1:]]
    if catcher.python in raisers or catcher.owner < Owner.MODEL:
        return context
    return None


def _holds_frames(error: BaseException) -> bool:
    return type(error).__name__ in _FRAME_HOLDERS


def _read_frames(trace: TracebackType | None) -> Iterator[Frame]:
    while trace is not None:
        yield _read_frame(trace.tb_frame, trace.tb_lineno, trace.tb_lasti)
        trace = trace.tb_next


def _read_frame(frame: FrameType, line: int, instruction: int) -> Frame:
    code = frame.f_code
    module = str(frame.f_globals.get("__name__", "")) or _module_of(code.co_filename)
    # Positions are one for each code unit of two bytes. Frames that jax makes up have a
    # line and no position of it.
    positions = list(code.co_positions())[instruction // 2 : instruction // 2 + 1]
    [(start, end, column, end_column)] = positions or [(None, None, None, None)]
    if start != line:
        end, column, end_column = line, None, None
    owner = owner_of(code.co_filename, module)
    return Frame(
        code.co_filename, module, code.co_qualname, line, end or line, column, end_column, owner, frame
    )  # fmt: skip


@functools.lru_cache(1024)
def _module_of(file: str) -> str:
    """The module of a file; for frames that jax makes up, which have a file and no
    variables.
    """
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file:
            return name
    return ""
