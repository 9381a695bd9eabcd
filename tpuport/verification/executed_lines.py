"""Which lines of the model's code a run executes."""

import dis
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from tpuport.trace_errors import Source
from tpuport.trace_errors.libraries import Owner, is_helper, is_installed, owner_of


class ExecutedLines:
    """Notes lines of the model's code, and of libraries of models, that run inside a
    `with` block in this thread.

    A debugger or a measurement of coverage that is active gets nothing from inside the
    block, and everything after it.

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

    def _enter_call(
        self, frame: FrameType, event: str, argument: Any
    ) -> Callable[..., Any] | None:
        code = frame.f_code
        # Once for each function: this runs at every call that Python makes.
        is_model_code = self._is_model_code.get(code)
        if is_model_code is None:
            name = str(frame.f_globals.get("__name__", ""))
            is_model_code = owner_of(code.co_filename, name) == Owner.MODEL
            # A cache, for example, may be of an installed package without models.
            is_model_code |= is_helper(code.co_filename, name.partition(".")[0])
            self._is_model_code[code] = is_model_code
        if not is_model_code:
            # Python then reports no lines of this call.
            return None
        self.functions.add((code.co_filename, code.co_qualname))
        self.lines[code.co_filename].add(frame.f_lineno)
        return self._note_line

    def _note_line(
        self, frame: FrameType, event: str, argument: Any
    ) -> Callable[..., Any]:
        if event == "line":
            self.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._note_line

    def runs(self, file: str, first: int, last: int) -> bool:
        """Whether any line of a range ran."""
        return not self.lines.get(file, set()).isdisjoint(range(first, last + 1))

    def source(self, file: str, line: int) -> Source:
        """A line that ran, with the function that it is in."""
        names = (
            code.co_qualname
            for code in self._is_model_code
            if code.co_filename == file
            and line in {number for _, _, number in code.co_lines()}
        )
        return Source.read(file, line, next(names, ""))

    def changing_line(self, name: str) -> Source | None:
        """The line that ran and most likely changes what has this name: an attribute,
        or an item of a dictionary.

        Constructors do not count: they run before.
        """
        codes = [
            code for code, is_model_code in self._is_model_code.items()
            if is_model_code and code.co_name != "__init__"
        ]  # fmt: skip
        lines = [line for code in codes for line in self._lines_naming(code, name)]
        # `min` takes the first of those that are equal, in the order in which functions
        # ran. Packages that torch calls may use the same name.
        return min(lines, key=_distance)[1] if lines else None

    def _lines_naming(self, code: CodeType, name: str) -> Iterator[tuple[int, Source]]:
        """The lines of a function that ran and have a name, and how likely each changes
        it: 0 most.
        """
        instructions = list(dis.get_instructions(code))
        item_stores = {
            _line_of(step) for step in instructions if step.opname == "STORE_SUBSCR"
        }
        for instruction in instructions:
            line = _line_of(instruction)
            if instruction.argval != name or line not in self.lines[code.co_filename]:
                continue
            # An assignment to an item loads the name of the item, or of the attribute
            # that has the item. A list also changes where its name is only loaded.
            rank = 1 if line in item_stores else 2
            if instruction.opname == "STORE_ATTR":
                rank = 0
            yield rank, Source.read(code.co_filename, line, code.co_qualname)


def _distance(line: tuple[int, Source]) -> tuple[bool, int]:
    """How far a line is from what is looked for: first those of code that is not
    installed.
    """
    rank, source = line
    return is_installed(source.file), rank


def _line_of(instruction: dis.Instruction) -> int:
    positions = instruction.positions
    return (positions and positions.lineno) or 0
