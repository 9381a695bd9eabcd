"""What is known of code that cannot be traced, in plain values, and the error that
carries it.
"""

import dataclasses
import linecache
import re
import types
from collections.abc import Callable, Sequence
from typing import Final

from tpuport.errors import PortError

# What rooms above this one know of a failure: functions that take the calls on the way
# to it ("module:function", innermost last) and return a remedy, or "".
# `tpuport.patches` adds one.
remedies: Final[list[Callable[[Sequence[str]], str]]] = []

_BROADCAST: Final = re.compile(
    r"Attempting to broadcast a dimension|expected shape should be broadcastable"
)
_LONGEST: Final = 300  # characters of an error's first line that a message quotes


@dataclasses.dataclass(frozen=True)
class Source:
    """A line of the model's code, or the user's: that of the innermost call that is not
    a library's.

    Attributes:
        file: as Python knows it; line: from 1; function: the name of the function
            around it.
        code: the line's text without indentation; empty if the file cannot be read.
    """

    file: str
    line: int
    function: str
    code: str = ""

    @classmethod
    def read(cls, file: str, line: int, function: str) -> "Source":
        """A line with its text."""
        return cls(file, line, function, linecache.getline(file, line).strip())

    @classmethod
    def start_of(cls, code: types.CodeType) -> "Source":
        """The line on which a function begins."""
        return cls.read(code.co_filename, code.co_firstlineno, code.co_qualname)


@dataclasses.dataclass(frozen=True)
class TraceFailure:
    """Why there is no program.

    Attributes:
        kind: "trace" if the model's code cannot be traced, "compiler" if the compiler
            refuses the program, or "defect" if no code of the model's has a part in it.
        message: what happened, in a sentence.
        source: the line of the user's or the model's code.
        rule: the lint rule about it ("TPU102"), or None; remedy: what to do.
        traceback: everything that Python or the compiler printed.
    """

    kind: str
    message: str
    source: Source | None = None
    rule: str | None = None
    remedy: str = ""
    traceback: str = ""


class CannotTrace(PortError):
    """A model's code cannot be traced.

    Attributes:
        failure: the line, the rule and the remedy.
    """

    def __init__(self, failure: TraceFailure) -> None:
        self.failure = failure
        where = fix = None
        if source := failure.source:
            where = f"{source.file}, line {source.line}, in {source.function}"
        if failure.remedy:
            # An error of the code itself has no rule.
            fix = ": ".join(filter(None, (failure.rule, failure.remedy)))
        super().__init__(failure.message, where=where, fix=fix)

    def __reduce__(self) -> tuple[type["CannotTrace"], tuple[TraceFailure]]:
        return CannotTrace, (self.failure,)


def first_line(error: BaseException) -> str:
    """The start of an error's message, without a full stop."""
    text = re.sub(r"\s*\n\s*", "\n", str(error).strip()) or "no message"
    # Some only announce on the first line what the second one says.
    line = re.sub(r":\n(?!\*)", ": ", text, count=1).partition("\n")[0]
    if _BROADCAST.search(line):  # the rest is in torch's own terms
        line = "the shapes cannot be broadcast together"
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST - 3]}..."
    return line.removesuffix(", but expected one of:").rstrip(".:")
