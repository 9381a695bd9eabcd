"""Escape codes of a terminal, where they are wanted."""

import unicodedata
from typing import Final

from tpuport.lint.findings import Severity

_CODES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}
SEVERITY: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "blue"}


class Style:
    """Paints text, or leaves it as it is."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def __call__(self, text: str, *names: str) -> str:
        """The text in some colours."""
        if not self.color or not text:
            return text
        return "".join(f"\x1b[{_CODES[name]}m" for name in names) + text + "\x1b[0m"


def printable(text: str) -> str:
    """Text of the linted code without what a terminal would obey, tabs as four blanks."""
    text = text.replace("\t", "    ")
    return "".join(
        char if unicodedata.category(char)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def width(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
