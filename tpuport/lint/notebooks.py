"""Jupyter notebooks: their cells as one module, and a changed module written back to
the cells.

The module has a comment before the lines of each cell. What is not Python in a cell,
such as `%matplotlib inline` and `!pip install`, is replaced line by line with Python of
unknown meaning, which is told apart by a number. Cells in another language are left
out.
"""

import bisect
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tpuport.errors import PortError

SUFFIX: Final = ".ipynb"

_SEPARATOR: Final = "# notebook cell "
# Of these cell magics the body is Python, which runs in the notebook's own process.
_PYTHON_CELL_MAGICS: Final = frozenset(
    {"capture", "debug", "ipytest", "prun", "time", "timeit"}
)
_CELL_MAGIC: Final = re.compile(r"\s*%%(?P<name>\w+)")
# `%load_ext x`, `!ls`, `?model`, `model.forward??`, `files = !ls`,
# `result = %timeit -o f()`.
_MAGIC: Final = re.compile(
    r"(?P<indent>\s*)(?:(?P<target>[\w.,\s\[\]]+=\s*)(?:!|%(?=\w))|!|%{1,2}\w|\?|[\w.]+\?{1,2}\s*$).*"
)
# What decides whether a line starts a statement: strings, comments, brackets, and a
# backslash at a line's end.
_TOKEN: Final = re.compile(
    r"(?P<string>(?:'''|\"\"\"|'|\"))|(?P<comment>\#[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<joined>\\\n)"
)
_DECODER: Final = json.JSONDecoder()
_BLANK: Final = re.compile(r"[ \t\r\n]*")


class NotANotebookError(PortError):
    """The file's text is not that of a notebook."""


class ChangedCellsError(PortError):
    """A changed module cannot be divided into the notebook's cells."""


class CellPosition(NamedTuple):
    """A line of a notebook: the cell's number among all cells, and the line in it; both
    from 1.
    """

    cell: int
    line: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell:
    """A cell with Python.

    Attributes:
        number: among all cells, from 1.
        start, end: where its source is in the notebook's text.
        is_list: the source is a list of lines, and not one string.
        lines: its lines.
        masked: its lines with Python only.
    """

    number: int
    start: int
    end: int
    is_list: bool
    lines: tuple[str, ...]
    masked: tuple[str, ...]


class Notebook:
    """A notebook's text and the module that its cells form.

    Attributes:
        text: of the file.
        module: of the cells; "" if none of them is Python.
        is_python: whether its kernel runs Python.

    Raises:
        NotANotebookError: the text is not JSON with cells.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        content = _parse(text)
        self.is_python = _language(content) in ("", "python")
        self._cells = _python_cells(text, content) if self.is_python else []
        lines = [
            line for cell in self._cells for line in (_separator(cell), *cell.masked)
        ]
        self.module = "".join(f"{line}\n" for line in lines)
        # The module's lines at which the cells' separators are, from 1.
        sizes = (len(cell.masked) + 1 for cell in self._cells)
        self._starts = list(itertools.accumulate(sizes, initial=1))[:-1]

    def locate(self, line: int) -> CellPosition:
        """Where a line of the module is; a separator counts as the first line of its
        cell.
        """
        index = max(bisect.bisect_right(self._starts, line) - 1, 0)
        # Python reports the end of an unfinished statement after the last line.
        last = max(len(self._cells[index].lines), 1)
        return CellPosition(
            self._cells[index].number, min(max(line - self._starts[index], 1), last)
        )

    def module_line(self, position: CellPosition) -> int:
        """The inverse of `locate`."""
        index = next(
            i for i, cell in enumerate(self._cells) if cell.number == position.cell
        )
        return self._starts[index] + position.line

    def lines_of(self, number: int) -> tuple[str, ...]:
        """The lines of a cell as they are in the notebook."""
        return next((cell.lines for cell in self._cells if cell.number == number), ())

    def readable(self, module: str) -> str:
        """A module of these cells, changed or not, with the cells' own lines where they
        were masked.
        """
        return "".join(f"{line}\n" for line in self._unmasked(module.split("\n")[:-1]))

    def with_module(self, module: str) -> str:
        """The notebook's text with the sources that a changed module has; everything
        else stays as it is.

        Raises:
            ChangedCellsError: the change goes beyond one cell.
        """
        text = self.text
        # From the end, so that positions of earlier cells stay right.
        for cell, lines in reversed(
            list(zip(self._cells, self._divide(module), strict=True))
        ):
            if lines != list(cell.lines):
                source = _format_source(cell, lines, text)
                text = text[: cell.start] + source + text[cell.end :]
        return text

    def _divide(self, module: str) -> list[list[str]]:
        """The lines of each cell of a changed module."""
        sections: list[list[str]] = []
        separators: list[str] = []
        for line in self._unmasked(module.split("\n")[:-1]):
            if line.startswith(_SEPARATOR):
                separators.append(line)
                sections.append([])
            elif sections:
                sections[-1].append(line)
            else:
                raise ChangedCellsError("a line was put before the first cell")
        if separators != list(map(_separator, self._cells)):
            raise ChangedCellsError("the cells are not the same as before")
        # What is not Python must still be there, and a cell's magic must be its first
        # line.
        for cell, section in zip(self._cells, sections, strict=True):
            # The blank line between an import and the next cell's first statement.
            while cell.lines[-1] and len(section) > 1 and not section[-1]:
                section.pop()
            magics = [
                line
                for line, masked in zip(cell.lines, cell.masked, strict=True)
                if line != masked
            ]
            remaining = [line for line in section if line in magics]
            is_first = (
                not magics
                or not _CELL_MAGIC.match(cell.lines[0])
                or section[:1] == [cell.lines[0]]
            )
            if len(remaining) < len(magics) or not is_first:
                raise ChangedCellsError(
                    f"the magics of cell {cell.number} are not where they were"
                )
        return sections

    def _unmasked(self, lines: list[str]) -> Iterator[str]:
        originals = {
            masked: line
            for cell in self._cells
            for line, masked in zip(cell.lines, cell.masked, strict=True)
            if line != masked
        }
        return (originals.get(line, line) for line in lines)


def _separator(cell: _Cell) -> str:
    return f"{_SEPARATOR}{cell.number}"


# --- from JSON to cells ---


def _parse(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotANotebookError(f"this is not a notebook: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        fix = "convert it with `jupyter nbconvert --to notebook`"
        raise NotANotebookError(
            "this is not a notebook of format 4: it has no list of cells", fix=fix
        )
    return content


def _language(content: dict[str, Any]) -> str:
    metadata = content.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    for table, key in (("language_info", "name"), ("kernelspec", "language")):
        entry = metadata.get(table)
        if isinstance(entry, dict) and isinstance(entry.get(key), str):
            # Some kernels are called "ipython" and "python3".
            return re.sub(r"^i?(python)\d*$", r"\1", entry[key].lower())
    return ""


def _python_cells(text: str, content: dict[str, Any]) -> list[_Cell]:
    (cells_start,) = (start for key, start, _ in _members(text, 0) if key == "cells")
    cells: list[_Cell] = []
    masks = itertools.count(1)
    starts = _items(text, cells_start)
    for number, (cell, start) in enumerate(
        zip(content["cells"], starts, strict=True), 1
    ):
        if (
            not isinstance(cell, dict)
            or cell.get("cell_type") != "code"
            or "source" not in cell
        ):
            continue
        value = cell["source"]
        source = value if isinstance(value, str) else "".join(map(str, value))
        lines = tuple(source.split("\n"))
        masked = _mask(lines, masks)
        if masked is not None:
            # Of equal keys the last one counts, as in Python's own parser.
            spans = [
                (first, last)
                for key, first, last in _members(text, start)
                if key == "source"
            ]
            cells.append(
                _Cell(number, *spans[-1], isinstance(value, list), lines, masked)
            )
    return cells


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """The keys of a JSON object that starts at or after a position, with where their
    values start and end.
    """
    position = _skip(text, start) + 1
    while text[_skip(text, position)] != "}":
        key, position = _DECODER.raw_decode(text, _skip(text, position))
        # Behind the colon.
        value = _skip(text, _skip(text, position) + 1)
        _, end = _DECODER.raw_decode(text, value)
        yield key, value, end
        position = _skip(text, end)
        position += text[position] == ","


def _items(text: str, start: int) -> Iterator[int]:
    """Where the items of a JSON array start."""
    position = start + 1
    while text[_skip(text, position)] != "]":
        position = _skip(text, position)
        yield position
        _, end = _DECODER.raw_decode(text, position)
        position = _skip(text, end)
        position += text[position] == ","


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    assert match is not None
    return match.end()


def _format_source(cell: _Cell, lines: list[str], text: str) -> str:
    """A cell's source as JSON in the style of the one that it replaces."""
    # Jupyter writes characters as they are; some tools escape them.
    is_escaped = text.isascii() and not all(line.isascii() for line in cell.lines)
    source = "\n".join(lines)
    if not cell.is_list:
        return json.dumps(source, ensure_ascii=is_escaped)
    old = text[cell.start : cell.end]
    before = old[1 : _skip(old, 1)]
    after = old[len(old[:-1].rstrip()) : -1]
    between = f",{before}"
    if len(cell.lines) > 1:
        # In a list on one line a blank is behind the commas only.
        _, end = _DECODER.raw_decode(old, 1 + len(before))
        between = old[end : _skip(old, _skip(old, end) + 1)]
    items = [
        json.dumps(line, ensure_ascii=is_escaped)
        for line in re.findall(r"[^\n]*\n|[^\n]+", source)
    ]
    return f"[{before}{between.join(items)}{after}]"


# --- from cells to Python ---


def _mask(lines: tuple[str, ...], masks: Iterator[int]) -> tuple[str, ...] | None:
    """The lines with Python only; None if the cell is in another language."""
    masked = list(lines)
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    cell_magic = _CELL_MAGIC.match(lines[first])
    if cell_magic is not None:
        if cell_magic["name"] not in _PYTHON_CELL_MAGICS:
            return None
        masked[first] = f"# cell magic {next(masks)}"
        first += 1
    is_statement = True
    is_magic = False
    scanner = _LineScanner()
    for index in range(first, len(lines)):
        line = lines[index]
        if is_magic:
            masked[index] = f"# magic {next(masks)}"
        elif is_statement and (magic := _MAGIC.fullmatch(line)):
            target = magic["target"] or ""
            masked[index] = f"{magic['indent']}{target}get_ipython({next(masks)})"
            is_magic = True
        else:
            is_statement = scanner.ends_statement(line)
            continue
        is_magic = line.endswith("\\")
    return tuple(masked)


class _LineScanner:
    """Follows strings and brackets through the lines of a cell."""

    def __init__(self) -> None:
        self.quote = ""
        self.depth = 0

    def ends_statement(self, line: str) -> bool:
        """Whether the next line starts a statement."""
        text = f"{line}\n"
        position = 0
        is_joined = False
        while position < len(text):
            if self.quote:
                position = self._after_string(text, position)
                continue
            token = _TOKEN.search(text, position)
            if token is None:
                break
            position = token.end()
            self.quote = token["string"] or ""
            self.depth += bool(token["open"]) - bool(token["close"])
            is_joined = bool(token["joined"])
        return not (self.quote or self.depth > 0 or is_joined)

    def _after_string(self, text: str, position: int) -> int:
        """Where the current string ends, or the line if it goes on."""
        end = re.compile(rf"\\.|{self.quote}", re.DOTALL)
        while match := end.search(text, position):
            position = match.end()
            if match[0] == self.quote:
                self.quote = ""
                return position
        # A string in single quotes ends with its line, unless that ends in a backslash.
        if len(self.quote) == 1 and not text.endswith("\\\n"):
            self.quote = ""
        return len(text)
