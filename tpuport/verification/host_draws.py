"""Random numbers of Python and NumPy, which a program has as constants: the lines that
draw them, and the same numbers for each run.
"""

import contextlib
import functools
import random
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np

from tpuport.base.temporary import temporary_attributes
from tpuport.trace_errors import Source
from tpuport.trace_errors.libraries import is_installed
from tpuport.verification.check_result import CheckFinding

# Their functions are methods of a generator that belongs to nobody.
_FILES: Final = (random, np.random)
_GENERATORS: Final = (random.Random, np.random.RandomState)
_SETTERS: Final = frozenset({"seed", "getstate", "setstate", "get_state", "set_state"})
_SEED: Final = 0


class HostDraws:
    """Notes the lines of code that is not installed and draws such numbers inside of a
    `with` block, by the functions of `random` and `numpy.random`.

    Attributes:
        lines: each once, in order.
    """

    def __init__(self) -> None:
        self.lines: list[Source] = []
        self._replaced = contextlib.ExitStack()

    def __enter__(self) -> "HostDraws":
        for file in _FILES:
            noting = {name: self._noting(draw) for name, draw in _drawing(file).items()}
            self._replaced.enter_context(temporary_attributes(file, **noting))
        return self

    def __exit__(self, *error: Any) -> None:
        self._replaced.close()

    def _noting(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(draw)
        def draw_and_note(*args: Any, **kwargs: Any) -> Any:
            self._note(sys._getframe(1))
            return draw(*args, **kwargs)

        return draw_and_note

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        line = Source.read(code.co_filename, frame.f_lineno, code.co_qualname)
        if not is_installed(line.file) and line not in self.lines:
            self.lines.append(line)


def _drawing(file: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions of a file that draw, by name."""
    return {
        name: value
        for name, value in vars(file).items()
        if isinstance(getattr(value, "__self__", None), _GENERATORS)
        and name not in _SETTERS
    }


class SameHostDraws:
    """Inside of the block, the generators of Python and NumPy that belong to nobody
    draw what they draw in each such block.
    """

    def __enter__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        random.seed(_SEED)
        np.random.seed(_SEED)

    def __exit__(self, *error: Any) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def findings(lines: list[Source]) -> list[CheckFinding]:
    """An error for each line that draws."""
    return [
        CheckFinding(
            "draw", "torch", "error",
            f"{line.function} draws numbers of Python or NumPy, which are constants of a program: each compiled call "
            "has the same ones, and torch has others",
            "draw with torch on the device, `torch.rand((), device=x.device)`, or outside of the model, and pass the "
            "numbers in",
            line, "TPU506",
        )
        for line in lines
    ]  # fmt: skip
