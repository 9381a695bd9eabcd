"""Which line of the user's code runs, as Python's stack tells."""

import sys
from typing import Any, Final

_LIBRARIES: Final = {"tpuport", "torch", "torchax", "jax", "contextlib", "functools"}


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
    frame: Any = sys._getframe()
    while frame is not None:
        home = frame.f_globals.get("__name__", "").partition(".")[0]
        if home not in _LIBRARIES:
            return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        frame = frame.f_back
    return "compiled code"
