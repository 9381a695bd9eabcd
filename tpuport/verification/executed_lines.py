"""Which lines of the model's code a run executes."""

import sys
from collections import defaultdict
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tpuport.trace_errors.libraries import Owner, owner_of


class ExecutedLines:
    """Notes lines of the model's code, and of libraries of models, that run inside a `with` block in this thread.

    A debugger or a measurement of coverage that is active gets nothing from inside the block, and everything after it.

    Attributes:
        lines: the numbers of the lines that ran, by file as Python names it.
        functions: the file and qualified name of each function that was called.
    """

    def __init__(self) -> None:
        self.lines: defaultdict[str, set[int]] = defaultdict(set)
        self.functions: set[tuple[str, str]] = set()
        self._is_model_code: dict[CodeType, bool] = {}
        self._before: Callable[..., Any] | None = None

    def __enter__(self) -> "ExecutedLines":
        self._before = sys.gettrace()
        sys.settrace(self._enter_call)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self._before)

    def _enter_call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        # Once for each function: this runs at every call that Python makes.
        is_model_code = self._is_model_code.get(code)
        if is_model_code is None:
            owner = owner_of(code.co_filename, str(frame.f_globals.get("__name__", "")))
            is_model_code = self._is_model_code[code] = owner == Owner.MODEL
        if not is_model_code:
            # Python then reports no lines of this call.
            return None
        self.functions.add((code.co_filename, code.co_qualname))
        self.lines[code.co_filename].add(frame.f_lineno)
        return self._note_line

    def _note_line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "line":
            self.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._note_line

    def runs(self, file: str, first: int, last: int) -> bool:
        """Whether any line of a range ran."""
        return not self.lines.get(file, set()).isdisjoint(range(first, last + 1))
