"""Tracebacks: which calls in one are the user's or the model's, and what they were about."""

import functools
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Final, NamedTuple

from tpuport.topology.compile_report import Source

# Below every model: what fails in one of these was asked for by somebody else.
_MACHINERY: Final = frozenset(
    "torch torchax torchvision jax jaxlib tpuport accelerate numpy scipy einops opt_einsum functorch beartype jaxtyping"
    " wrapt contextlib functools importlib typing_extensions huggingface_hub safetensors triton tokamax".split()
)
# Libraries whose models are read as the user's own code is, and what they have beside those is not.
_MODELS: Final = {"transformers": "transformers.models.", "diffusers": "diffusers.models."}
_STANDARD: Final = os.path.join(sysconfig.get_paths()["stdlib"], "")  # noqa: PTH118 - compared as text
_INSTALLED: Final = tuple(
    os.path.join(sysconfig.get_paths()[name], "")  # noqa: PTH118 - compared as text
    for name in ("purelib", "platlib")
)


class Frame(NamedTuple):
    """A call in a traceback, at the place where it went wrong.

    Attributes:
        file: as Python knows it; module: its name; function: qualified.
        line, end_line: of the expression, from 1; column, end_column: of the same, from 0, in bytes, None where Python
            does not say.
        level: 2 for the user's code and models', 1 for what is beside the models in their libraries, 0 for machinery.
        identity: of the frame object, which several tracebacks may share.
        python: the frame object, with its variables.
    """

    file: str
    module: str
    function: str
    line: int
    end_line: int
    column: int | None
    end_column: int | None
    level: int
    identity: int
    python: FrameType | None = None

    def source(self) -> Source:
        """As reports have it."""
        return Source(self.file, self.line, self.function, linecache.getline(self.file, self.line).strip())


class Way(NamedTuple):
    """The way to where something went wrong.

    Attributes:
        error: what was raised at the end of it.
        frames: outermost first.
    """

    error: BaseException
    frames: tuple[Frame, ...]

    def of_level(self, level: int) -> list[Frame]:
        """The calls of this level or above, innermost first."""
        return [frame for frame in reversed(self.frames) if frame.level >= level]


def way_to(error: BaseException) -> Way:
    """The way to the first error: where one was raised because of another, to that one.

    An error that a handler in the user's code met with one of its own is not the cause: there the handler failed.
    """
    frames, seen = list(_frames(error.__traceback__)), {id(error)}
    while (earlier := _earlier(error, frames)) is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        inner = list(_frames(earlier.__traceback__))
        if _is_filtering(earlier):
            inner = _traced(inner)  # they may begin with the first call of the process
        if inner:
            # The earlier traceback starts in the frame that caught it, which the later one went through as well.
            places = [place for place, frame in enumerate(frames) if frame.identity == inner[0].identity]
            frames = frames[: places[0]] + inner if places else frames + inner
        error = earlier if not _is_filtering(earlier) else error
    return Way(error, tuple(_traced(frames)))


def _traced(frames: list[Frame]) -> list[Frame]:
    """Without the calls that led to the tracing: those before the first of tpuport's or jax's own."""
    tops = [frame.module.partition(".")[0] for frame in frames]
    start = next((place for place, top in enumerate(tops) if top in ("tpuport", "jax", "jaxlib")), 0)
    if any(frame.level for frame in frames[start:]):
        return frames[start:]
    own = [place for place, frame in enumerate(frames) if frame.level]
    # Where code of the user's calls torch, and that jax, it is what is traced.
    if own and tops[own[-1] + 1 : own[-1] + 2] in (["torch"], ["torchax"]):
        return frames
    return frames[start:]


def _earlier(error: BaseException, frames: list[Frame]) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    context = error.__context__
    if context is None or error.__suppress_context__ or _is_filtering(context):
        return None
    caught = next(_frames(context.__traceback__), None)
    if caught is None:
        return None
    innermost = frames[-1] if frames else None
    raised_by_handler = innermost is not None and innermost.identity == caught.identity
    return context if raised_by_handler or caught.level < 2 else None


def _is_filtering(error: BaseException) -> bool:
    """Whether jax made this only to hold frames: those that it took out of another, or, when lowering, of tracing."""
    return type(error).__name__ in (
        "UnfilteredStackTrace",
        "SimplifiedTraceback",
        "JaxStackTraceBeforeTransformation",
    )


def _frames(trace: TracebackType | None) -> Iterator[Frame]:
    steps = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    for step, (frame, line) in zip(steps, traceback.walk_tb(steps[0] if steps else None), strict=True):
        yield _frame(frame, line, step.tb_lasti)


def _frame(frame: FrameType, line: int, instruction: int) -> Frame:
    code = frame.f_code
    positions = list(code.co_positions())
    start, end, column, end_column = (
        positions[instruction // 2] if 0 <= instruction // 2 < len(positions) else (None,) * 4
    )
    module = str(frame.f_globals.get("__name__", "")) or _module_of(code.co_filename)
    level = level_of(code.co_filename, module)
    if start != line:
        end, column, end_column = line, None, None
    return Frame(
        code.co_filename, module, code.co_qualname, line, end or line, column, end_column, level, id(frame), frame
    )  # fmt: skip


def level_of(file: str, module: str) -> int:
    """Whose code a file is, as `Frame` counts it."""
    top = module.partition(".")[0]
    if top in _MACHINERY or _is_standard(file) or (file.startswith("<") and not linecache.getlines(file)):
        return 0
    if top in _MODELS:
        return 2 if module.startswith(_MODELS[top]) else 1
    return 2


@functools.lru_cache(1024)
def _module_of(file: str) -> str:
    """Of frames that jax has made to stand for others, which have a file and no variables."""
    return next(
        (name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == file), ""
    )


def is_installed(file: str) -> bool:
    """Whether a file came with an installed package."""
    return file.startswith(_INSTALLED)


@functools.cache
def _is_standard(file: str) -> bool:
    return file.startswith(_STANDARD) and not is_installed(file)
