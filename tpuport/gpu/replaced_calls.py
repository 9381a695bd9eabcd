"""The calls that the GPU shim rewrote: each once per calling line, logged when it first
occurs.
"""

import collections
import contextlib
import dataclasses
import functools
import logging
import sys
from pathlib import Path

import torch

logger = logging.getLogger("tpuport")

# Frames of these files pass a call on; the caller is above them.
_TPUPORT = Path(__file__).parents[1]
_INTERMEDIATE = (
    f"{_TPUPORT}/gpu/", f"{_TPUPORT}/verification/", f"{Path(torch.__file__).parent}/", contextlib.__file__,
    functools.__file__, "<frozen ", "<@beartype",
)  # fmt: skip
_CHECKERS = ("/site-packages/jaxtyping/", "/site-packages/beartype/")


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that was rewritten.

    Args:
        name: what was called or imported, with its module.
        became: what was done instead.
        file, line: of the caller.
    """

    name: str
    became: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name} -> {self.became}"


class Calls:
    """The calls that were rewritten while `active`, with how often each was."""

    def __init__(self) -> None:
        self.active = False
        self.counts: collections.Counter[Call] = collections.Counter()

    def note(self, name: str, became: str) -> None:
        """Count a call of the current caller, while active."""
        if not self.active:
            return
        call = Call(name, became, *caller())
        if call not in self.counts:
            logger.info("gpu shim: %s", call)
        self.counts[call] += 1


def caller() -> tuple[str, int]:
    """File and line of the user's code that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_INTERMEDIATE) and not any(
            part in file for part in _CHECKERS
        ):
            return file, frame.f_lineno
        frame = frame.f_back
    return "?", 0
