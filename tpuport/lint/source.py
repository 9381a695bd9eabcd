"""A source file, decoded, split into lines and parsed, or the finding that says why it
cannot be.
"""

import ast
import dataclasses
import io
import itertools
import re
import tokenize
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.base.temporary import garbage_collection_off
from tpuport.errors import PortError
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.notebooks import SUFFIX, NotANotebookError, Notebook
from tpuport.lint.regular_files import read_regular_file

# A million take Python's parser some 600 MB. The largest file of torch, transformers
# and their like has 200,000.
_MOST_TOKENS: Final = 500_000
# Comments, strings (triple quotes first) and names count as one token each, and so does
# any other character. What starts like a string is one to the end of the text, so that
# nothing is looked at twice.
_TOKEN: Final = re.compile(
    r"""
    \#[^\r\n]*+
    | "{3}[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+(?:"{3})?+
    | '{3}[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+(?:'{3})?+
    | "[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?+
    | '[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'?+
    | \w++
    | \S
    """,
    re.VERBOSE | re.DOTALL,
)
_LINE_END: Final = re.compile(r"\r\n|\r|\n")

# Text that replaces a file's own, by absolute path: results of fixes that are not
# written yet.
overlay: dict[Path, str] = {}


class Unreadable(PortError):
    """A file that cannot be linted.

    Attributes:
        finding: what is wrong with it, and where.
    """

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(
            finding.reason, where=f"{finding.path}:{finding.line}", fix=finding.remedy
        )

    def __reduce__(self) -> tuple[type["Unreadable"], tuple[Finding]]:
        return Unreadable, (self.finding,)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SourceFile:
    """A parsed file.

    Attributes:
        path: absolute, symbolic links kept.
        display: as the user sees it.
        text: decoded, line ends as they are in the file.
        lines: without line ends, numbered as Python numbers them.
        tree: its syntax.
        encoding: that `text` goes back to bytes with; "utf-8-sig" where the file starts
            with a byte order mark.
    """

    path: Path
    display: str
    text: str
    lines: tuple[str, ...]
    tree: ast.Module
    encoding: str = "utf-8"


def read(path: Path, display: str) -> SourceFile:
    """Read, decode and parse a file; an entry of `overlay` replaces the file's own
    text.

    Raises:
        Unreadable: its finding says why.
    """
    text, encoding = overlay.get(path), "utf-8"
    if text is None:
        text, encoding = decode(_read_bytes(path, display), display)
    return parse(module_text(text, path, display), path, display, encoding)


def module_text(text: str, path: Path, display: str) -> str:
    """The Python in a file's text: all of it, or the module that the cells of a
    notebook form.

    Raises:
        Unreadable: it is not the text of a notebook with Python.
    """
    notebook = notebook_of(text, path, display)
    return text if notebook is None else notebook.module


def notebook_of(text: str, path: Path, display: str) -> Notebook | None:
    """A notebook by its text; None if the file's name is not that of one.

    Raises:
        Unreadable: it is not the text of a notebook with Python.
    """
    if path.suffix != SUFFIX:
        return None
    try:
        notebook = Notebook(text)
    except NotANotebookError as error:
        raise Unreadable(
            _unreadable(display, error.what, error.fix or "repair it, or exclude it")
        ) from None
    if not notebook.is_python:
        reason = "the notebook's language is not Python"
        finding = Finding(
            display,
            1,
            1,
            1,
            2,
            "TPU004",
            Severity.WARNING,
            reason,
            "exclude the notebook",
        )
        raise Unreadable(finding)
    return notebook


def split_lines(text: str) -> tuple[str, ...]:
    """Lines as Python counts them: form feeds and Unicode's separators do not end a
    line.
    """
    # Most texts have one kind of line end, which takes no pattern.
    return tuple(_LINE_END.split(text) if "\r" in text else text.split("\n"))


def decode(data: bytes, display: str) -> tuple[str, str]:
    """Text and encoding of a file's bytes, by its byte order mark or coding comment,
    else UTF-8.

    Raises:
        Unreadable: the encoding is unknown, or the bytes do not fit it.
    """
    # Python takes a carriage return alone for the end of a line too; the first two
    # lines may name the encoding.
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(lines).readline)
    except SyntaxError as error:
        if not error.msg.startswith("invalid or missing"):
            reason = f"the file's encoding is unclear: {_lower_first(error.msg)}"
            raise Unreadable(_unreadable(display, reason, "save it as UTF-8")) from None
        encoding = "utf-8"  # decoding reports the offending byte
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"byte 0x{data[error.start]:02x} on line {line} is not {encoding}"
        remedy = "save the file as UTF-8, or name its encoding in a first line such as `# -*- coding: latin-1 -*-`"
        raise Unreadable(_unreadable(display, reason, remedy, line)) from None
    except (LookupError, ValueError) as error:
        reason = f"the file's encoding {encoding!r} cannot be used: {error}"
        raise Unreadable(_unreadable(display, reason, "save it as UTF-8")) from None


def parse(text: str, path: Path, display: str, encoding: str = "utf-8") -> SourceFile:
    """Parse a file's text.

    Raises:
        Unreadable: a syntax error, a null byte, nesting too deep for Python's parser,
            or more than 500,000 tokens.
    """
    # Python's own error for this has no line.
    if "\0" in text:
        line = text.count("\n", 0, text.find("\0")) + 1
        reason = f"Python cannot read this file: there is a null byte on line {line}"
        raise Unreadable(
            _unreadable(
                display, reason, "remove the null bytes, or exclude the file", line
            )
        )
    if _has_too_many_tokens(text):
        raise Unreadable(_too_large(display))
    try:
        # The linted code's own invalid escapes and odd comparisons are for others to
        # report.
        with warnings.catch_warnings(action="ignore"), garbage_collection_off():
            tree = ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(_syntax_error(display, error)) from None
    except (RecursionError, MemoryError):
        reason = "the code is nested too deeply for Python's parser"
        raise Unreadable(
            _unreadable(display, reason, "split the expression, or exclude the file")
        ) from None
    return SourceFile(path, display, text, split_lines(text), tree, encoding)


def _read_bytes(path: Path, display: str) -> bytes:
    try:
        return read_regular_file(path)
    except (OSError, ValueError) as error:
        message = getattr(error, "strerror", None) or str(error)
        reason = f"the file cannot be read: {_lower_first(message)}"
        raise Unreadable(
            _unreadable(display, reason, "make it readable, or exclude it")
        ) from None


def contains(
    lines: Iterable[str], pattern: re.Pattern[str], words: Iterable[str]
) -> bool:
    """Whether a text has a match of a pattern that needs one of some lower-case words,
    for which the search takes far less time.
    """
    text = "\n".join(lines)
    lower = text.lower()
    return any(word in lower for word in words) and pattern.search(text) is not None


def count_tokens(text: str) -> int:
    """The names, numbers, strings, comments and signs of a file, by which the size of
    its tree goes.
    """
    return len(_TOKEN.findall(text))


def _has_too_many_tokens(text: str) -> bool:
    # A token has at least one character.
    if len(text) <= _MOST_TOKENS:
        return False
    return (
        next(itertools.islice(_TOKEN.finditer(text), _MOST_TOKENS, None), None)
        is not None
    )


def _too_large(display: str) -> Finding:
    reason = (
        f"the file has more than {_MOST_TOKENS:,} names, numbers, strings and signs"
    )
    remedy = "move its data to a file of another format, or exclude the file; nothing in it was looked at"
    return Finding(display, 1, 1, 1, 2, "TPU007", Severity.ERROR, reason, remedy)


def _syntax_error(display: str, error: SyntaxError) -> Finding:
    line, column = max(1, error.lineno or 1), max(1, error.offset or 1)
    # Python reports the end as 0, or before the start, if it does not know it.
    end_line, end_column = error.end_lineno or line, error.end_offset or 0
    if end_line < line or (end_line == line and end_column <= column):
        end_line, end_column = line, column + 1
    return Finding(
        display,
        line,
        column,
        end_line,
        max(1, end_column),
        "TPU001",
        Severity.ERROR,
        f"Python cannot parse this file: {_lower_first(error.msg)}",
        "correct the syntax, or exclude the file; nothing else in it was looked at",
    )


def _unreadable(display: str, reason: str, remedy: str, line: int = 1) -> Finding:
    return Finding(display, line, 1, line, 2, "TPU002", Severity.ERROR, reason, remedy)


def _lower_first(text: str) -> str:
    """The text on one line, its first word in lower case unless that is an
    abbreviation.
    """
    text = " ".join(text.split())
    if text[1:2].islower():
        return text[:1].lower() + text[1:]
    return text


class Span(NamedTuple):
    """A range of a file's text, all numbers from 1, columns in characters; the end
    column is one past the last.
    """

    line: int
    column: int
    end_line: int
    end_column: int


def node_span(node: ast.AST, lines: tuple[str, ...]) -> Span:
    """Where a finding about a syntax node is reported.

    A method call in a chain over several lines starts at its method's name, which is
    where Python's own tracebacks point; everything else starts where its expression
    does.

    Args:
        node: the node.
        lines: the file's lines.
    """
    # A whole module has no position of its own.
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    end_column = getattr(node, "end_col_offset", None) or column
    match node:
        case ast.Call(
            func=ast.Attribute(
                attr=name, end_lineno=int(name_line), end_col_offset=int(name_end)
            )
        ) if name_line != line:
            # Offsets are bytes of UTF-8.
            line, column = name_line, name_end - len(name.encode())
    return Span(
        line,
        _character_column(lines, line, column),
        end_line,
        _character_column(lines, end_line, end_column),
    )


def _character_column(lines: tuple[str, ...], line: int, offset: int) -> int:
    """The column from 1, in characters, of an offset in UTF-8 bytes."""
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    if text.isascii():
        return offset + 1
    return len(text.encode()[:offset].decode(errors="ignore")) + 1
