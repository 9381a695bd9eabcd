"""Which line of a model, or of a user's own code, a program's instruction comes from.

The text of a program has tables: file names, function names, locations in files, and
stack frames, each a location and the frame that called it.
"""

import functools
import itertools
import linecache
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tpuport.topology.compile_report import Source
from tpuport.trace_errors.libraries import LIBRARIES, TRACING, package_file

_TABLE: Final = re.compile(
    r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n((?:\d+ .*\n?)*)",
    re.MULTILINE,
)
_ROW: Final = re.compile(r"^(\d+) (.*)$", re.MULTILINE)
_FIELD: Final = re.compile(r"(\w+)=(\d+)")
_TOPOLOGY: Final = str(Path(__file__).parents[1])
# Of these libraries only what describes one model or a family of models is the model's
# code.
_MODEL_FOLDERS: Final = {
    "transformers": ("models/",),
    "diffusers": ("models/", "pipelines/"),
}
_SHARED_MODEL_FILES: Final = {
    "models/modeling_utils.py", "models/attention_dispatch.py", "models/model_loading_utils.py",
}  # fmt: skip

StackFrame = tuple[str, int, str]  # file, line, function


class Frames:
    """The stack frames of a program, by number.

    Args:
        header: of the program's text, with its tables.
    """

    def __init__(self, header: str) -> None:
        tables = {
            table[1]: dict(_ROW.findall(table[2])) for table in _TABLE.finditer(header)
        }
        self._files = tables.get("FileNames", {})
        self._functions = tables.get("FunctionNames", {})
        self._locations = tables.get("FileLocations", {})
        self._frames = {
            int(number): dict(_FIELD.findall(row))
            for number, row in tables.get("StackFrames", {}).items()
        }
        # A frame without a parent has parent 0. Some versions of XLA number parents one
        # higher than frames, so that no frame has 0, and the outermost has itself.
        self._parent_offset = int(0 not in map(_parent, self._frames.values()))

    def stack(self, number: int) -> list[StackFrame]:
        """A frame and those that called it, the innermost first."""
        stack = []
        while number in self._frames:
            row = self._frames[number]
            location = dict(
                _FIELD.findall(self._locations.get(row.get("file_location_id", ""), ""))
            )
            file = self._files.get(location.get("file_name_id", ""), "").strip('"')
            function = self._functions.get(
                location.get("function_name_id", ""), ""
            ).strip('"')
            stack.append((file, int(location.get("line", 0)), function))
            parent = _parent(row) - self._parent_offset
            # Parents come before their children, so this is the outermost.
            if parent >= number:
                break
            number = parent
        return stack

    @functools.cache  # noqa: B019 - it lives as long as its program
    def source(self, number: int) -> Source | None:
        """The innermost line of a model or of a user; if there is none, of anything
        that does not trace.
        """
        return innermost_source(self.stack(number))


def _parent(row: dict[str, str]) -> int:
    return int(row.get("parent_frame_id", 0))


def innermost_source(stack: Iterable[StackFrame]) -> Source | None:
    """The line of a model or of a user in a stack, the innermost frame first; see
    `Frames.source`.
    """
    # What is outside of tpuport's compiler asked for the program, and did not make its
    # instructions.
    inside = list(
        itertools.takewhile(lambda frame: not frame[0].startswith(_TOPOLOGY), stack)
    )
    candidates = [frame for frame in inside if _is_model_code(frame[0])]
    candidates += [frame for frame in inside if frame[0] and not _only_traces(frame[0])]
    if not candidates:
        return None
    file, line, function = candidates[0]
    return Source(
        short_path(file), line, function, linecache.getline(file, line).strip()
    )


def short_path(file: str) -> str:
    """A file of an installed package as "package/file", the same on every machine; any
    other as it is.
    """
    package, path = package_file(file)
    if not path or package == "python":
        return file
    return f"{package}/{path}"


@functools.lru_cache(maxsize=4096)
def _only_traces(file: str) -> bool:
    """Whether a file is of a library that traces, or of what tpuport adds to
    torchax.
    """
    package, path = package_file(file)
    return package in TRACING or (package == "tpuport" and path.startswith("compat/"))


@functools.lru_cache(maxsize=4096)
def _is_model_code(file: str) -> bool:
    """Whether a file is a model's or a user's."""
    package, path = package_file(file)
    if package in _MODEL_FOLDERS:
        return (
            path.startswith(_MODEL_FOLDERS[package]) and path not in _SHARED_MODEL_FILES
        )
    return bool(file) and package not in LIBRARIES | {"python"}
