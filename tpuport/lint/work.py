"""How much work the analysis of a file has taken, and the limit to it.

Counted are evaluated expressions, and elements of containers and environments that are copied or compared, so a limit
ends the analysis at the same place on every machine. A time would not.
"""

from typing import Final

# The model of transformers and diffusers that takes most, Qwen3 Omni, takes a fifth of it. It is some five seconds.
LIMIT: Final = 1_000_000


class WorkLimitError(Exception):
    """The analysis of a file has taken too much work.

    Attributes:
        path: of the file whose statement was being interpreted.
        line: of that statement.
        route: the functions that were being interpreted, the outermost first.
    """

    def __init__(self, path: str, line: int, route: tuple[str, ...]) -> None:
        self.path, self.line, self.route = path, line, route
        super().__init__(path, line, route)


class WorkMeter:
    """Counts the work on the file that is being analysed.

    Attributes:
        units: those spent since the last reset.
        limit: after how many the analysis ends.
    """

    __slots__ = ("limit", "units")

    def __init__(self) -> None:
        self.units = 0
        self.limit = LIMIT

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit has been passed."""
        return self.units > self.limit

    def reset(self) -> None:
        """Start to count anew, for another file."""
        self.units = 0


meter: Final = WorkMeter()
