"""Which line of a model, or of a user's own code, a program's instruction comes from.

The text of a program has tables: file names, function names, places in them, and frames, each a place and the frame
that called it.
"""

import functools
import itertools
import linecache
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tpuport.topology.compile_report import Source

_TABLE: Final = re.compile(
    r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n((?:\d+ .*\n?)*)", re.MULTILINE
)
_ROW: Final = re.compile(r"^(\d+) (.*)$", re.MULTILINE)
_FIELD: Final = re.compile(r"(\w+)=(\d+)")
_PACKAGE: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\]([^/\\]+)(?:[/\\](.*))?")
_TPUPORT: Final = str(Path(__file__).parents[2])
_ASKING: Final = str(Path(__file__).parents[1])
_STANDARD: Final = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
# What traces a program; a frame of theirs says nothing of the program.
_TRACING: Final = {"jax", "jaxlib", "torchax"}
_LIBRARIES: Final = _TRACING | {
    "_pytest", "accelerate", "beartype", "einops", "functorch", "IPython", "ipykernel", "jaxtyping", "numpy", "pluggy",
    "opt_einsum", "torch", "typeguard",
}  # fmt: skip
# Of these, only what describes one model, or a family: the rest is plumbing.
_MODELS: Final = {"transformers": ("models/",), "diffusers": ("models/", "pipelines/")}
_PLUMBING: Final = {
    "models/modeling_utils.py",
    "models/attention_dispatch.py",
    "models/model_loading_utils.py",
}


class Frames:
    """The stack frames of a program: `source` by number.

    Args:
        header: of the program's text, with its tables.
    """

    def __init__(self, header: str) -> None:
        tables = {found[1]: dict(_ROW.findall(found[2])) for found in _TABLE.finditer(header)}
        self._files = {number: name.strip('"') for number, name in tables.get("FileNames", {}).items()}
        self._functions = {
            number: name.strip('"') for number, name in tables.get("FunctionNames", {}).items()
        }
        self._places = {
            number: dict(_FIELD.findall(row)) for number, row in tables.get("FileLocations", {}).items()
        }
        self._frames = {
            int(number): dict(_FIELD.findall(row)) for number, row in tables.get("StackFrames", {}).items()
        }
        # A frame without a parent has 0 or, where parents are counted from 1 as frames are from 0, 1.
        parents = {int(row.get("parent_frame_id", 0)) for row in self._frames.values()}
        self._offset = 0 if 0 in parents else 1

    def stack(self, frame: int) -> list[tuple[str, int, str]]:
        """(file, line, function) of a frame and of those that called it, the innermost first."""
        found = []
        while row := self._frames.get(frame):
            place = self._places.get(row.get("file_location_id", ""), {})
            file = self._files.get(place.get("file_name_id", ""), "")
            function = self._functions.get(place.get("function_name_id", ""), "")
            found.append((file, int(place.get("line", 0)), function))
            parent = int(row.get("parent_frame_id", 0)) - self._offset
            if parent >= frame:  # no parent comes after its child
                break
            frame = parent
        return found

    @functools.cache  # noqa: B019 - it lives as long as its program
    def source(self, frame: int) -> Source | None:
        """The innermost line of a model or of a user; where there is none, of anything but what traces."""
        return innermost_source(self.stack(frame))


def innermost_source(stack: Iterable[tuple[str, int, str]]) -> Source | None:
    """The line of a model or of a user in a stack of (file, line, function), innermost first; or as `Frames.source`."""
    # Whoever asked for the program did not make its instructions.
    known = list(itertools.takewhile(lambda one: not one[0].startswith(_ASKING), stack))
    own = next((one for one in known if _is_own(one[0])), None)
    other = next((one for one in known if one[0] and _package(one[0])[0] not in _TRACING), None)
    chosen = own or other
    if chosen is None:
        return None
    file, line, function = chosen
    return Source(short(file), line, function, linecache.getline(file, line).strip())


@functools.lru_cache(maxsize=4096)
def _package(file: str) -> tuple[str, str]:
    """(the installed package that a file is of, the file in it); ("", "") for a file of no package."""
    if file.startswith(_TPUPORT):
        return "tpuport", file[len(_TPUPORT) + 1 :]
    if found := _PACKAGE.fullmatch(file):
        return found[1].removesuffix(".py"), (found[2] or "").replace("\\", "/")
    return ("python", file) if file.startswith((*_STANDARD, "<")) else ("", "")


def short(file: str) -> str:
    """A file of an installed package by its place in there, the same on every machine; any other as it is."""
    package, inside = _package(file)
    return f"{package}/{inside}" if inside and package != "python" else file


@functools.lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    """Whether a file is a model's or a user's."""
    package, inside = _package(file)
    if package in _MODELS:
        return inside.startswith(_MODELS[package]) and inside not in _PLUMBING
    return bool(file) and package not in _LIBRARIES | {"tpuport", "python"}
