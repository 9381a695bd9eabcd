"""Writing to the terminal, without rich: importing it takes longer than linting a
file.
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError

_COLOURS: Final = {"red": "\x1b[31m", "yellow": "\x1b[33m"}
_RESET: Final = "\x1b[0m"
_ERASE_LINE: Final = "\r\x1b[2K"
# Terminals without colours.
_PLAIN_TERMS: Final = {"dumb", ""}
# Work that takes less than this shows no progress.
_SILENT_SECONDS: Final = 1.0
_SECONDS_BETWEEN: Final = 0.1


def use_colours(stream: Any) -> bool:
    """Whether to colour output: on a terminal, unless NO_COLOR is set; FORCE_COLOR
    colours other streams too.
    """
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "unknown") not in _PLAIN_TERMS


def say(text: str, colour: str | None = None) -> None:
    """Write a line to standard error."""
    # Python starts with None if the shell has closed it.
    if sys.stderr is None:
        return
    if colour is not None and use_colours(sys.stderr):
        text = f"{_COLOURS[colour]}{text}{_RESET}"
    # Names of files may have bytes that are not UTF-8.
    sys.stderr.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stderr.flush()


def print_text(text: str, subject: str, fix: str) -> None:
    """Write text to standard output without changes, and escape what its encoding
    lacks.

    A reader that stops reading, such as `head`, has seen enough; that is not an error.

    Args:
        text: to write.
        subject: of an error, such as "the findings"; fix: what to do about it.

    Raises:
        PortError: it cannot be written.
    """
    if sys.stdout is None:
        raise _unwritable(subject, "it is closed", fix)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        raise _unwritable(subject, error.strerror or str(error), fix) from None


def write_file(file: Path, content: str | bytes, subject: str, option: str) -> None:
    """Write text or bytes to the file that an option names: all of it, or nothing.

    Raises:
        PortError: it cannot be written.
    """
    # Not at the top: importing any command would import the linter.
    from tpuport.lint.paths import write_atomically

    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    try:
        write_atomically(file, content)
    except OSError as error:
        raise PortError(
            f"{subject} cannot be written: {error.strerror}", where=f"{option} {file}"
        ) from None


def _unwritable(subject: str, reason: str, fix: str) -> PortError:
    return PortError(
        f"{subject} cannot be written: {reason}", where="standard output", fix=fix
    )


def _discard_output() -> None:
    """Send buffered output nowhere: Python would try to write it once more when it
    ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ProgressLine:
    """Shows `linting: 12 of 530 files` on a terminal, or any other words, and erases
    them in the end. A context manager.

    Args:
        activity: such as "linting".
        objects: what is counted, such as "files"; "" if nothing is.
    """

    def __init__(self, activity: str, objects: str = "") -> None:
        self.activity = activity
        self.objects = objects
        self._started = time.monotonic()
        self._last_update = 0.0
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> "ProgressLine":
        return self

    def __call__(self, count: int, total: int) -> None:
        """Show how many of all are finished."""
        self.show(f"{count:,} of {total:,} {self.objects}")

    def show(self, text: str) -> None:
        """Show what is being done, unless that was done a moment ago."""
        now = time.monotonic()
        is_early = now - self._started < _SILENT_SECONDS
        if (
            not self._is_terminal
            or is_early
            or now - self._last_update < _SECONDS_BETWEEN
        ):
            return
        self._last_update = now
        # What does not fit into one line could not be erased.
        columns = shutil.get_terminal_size().columns - 1
        line = f"{self.activity}: {text}"[:columns]
        sys.stderr.write(f"{_ERASE_LINE}{line}")
        sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        # Nothing was shown if the work took no time.
        if self._last_update:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
