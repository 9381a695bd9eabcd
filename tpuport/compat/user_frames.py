"""Which line of the user's code runs, as Python's stack tells."""

import sys
import traceback
from types import FrameType
from typing import Any, Final

_LIBRARIES: Final = {"tpuport", "torch", "torchax", "jax", "contextlib", "functools"}
_MODEL_LIBRARIES: Final = {"transformers", "diffusers"}


def stack_depth() -> int:
    """How many calls are on Python's stack."""
    depth = 0
    frame: Any = sys._getframe()
    while frame is not None:
        depth += 1
        frame = frame.f_back
    return depth


def user_line() -> str:
    """The innermost line outside of libraries and of this package."""
    frame = _user_frame()
    if frame is None:
        return "compiled code"
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def is_in_model_library() -> bool:
    """Whether the innermost line outside of this package and of torch is code of a
    library of models.
    """
    frame = _user_frame()
    return frame is not None and is_of_model_library(frame)


def is_raised_in_model_library(error: BaseException) -> bool:
    """Whether the innermost line outside of this package and of torch that an error
    came through is code of a library of models.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = next(
        (frame for frame in reversed(frames) if _home(frame) not in _LIBRARIES), None
    )
    return innermost is not None and is_of_model_library(innermost)


def is_of_model_library(frame: FrameType) -> bool:
    """Whether a frame runs code of transformers or diffusers."""
    return _home(frame) in _MODEL_LIBRARIES


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and _home(frame) in _LIBRARIES:
        frame = frame.f_back
    return frame


def _home(frame: FrameType) -> str:
    """The package of a frame's code."""
    return frame.f_globals.get("__name__", "").partition(".")[0]
