"""A line on standard error that says how far long work is."""

import sys
import time
from typing import Final

# What takes less than this shows nothing.
_QUIET_SECONDS: Final = 1.0
_BETWEEN_SECONDS: Final = 0.1


class Progress:
    """Shows `linting: 12 of 530 files` on a terminal, and takes it away in the end.

    Args:
        what: the work, such as "linting".
        things: what is counted, such as "files".
    """

    def __init__(self, what: str, things: str) -> None:
        self.what, self.things = what, things
        self._started = time.monotonic()
        self._shown = 0.0
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> "Progress":
        return self

    def __call__(self, done: int, total: int) -> None:
        """So many of all are done."""
        now = time.monotonic()
        if not self._terminal or now - self._started < _QUIET_SECONDS or now - self._shown < _BETWEEN_SECONDS:
            return
        self._shown = now
        sys.stderr.write(f"\r\x1b[2K{self.what}: {done:,} of {total:,} {self.things}")
        sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
