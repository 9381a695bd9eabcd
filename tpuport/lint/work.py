"""How much work the analysis of a file has taken, and the limit to it.

Counted are evaluated expressions, and elements of containers and environments that are
copied or compared, so a limit ends the analysis at the same place on every machine. A
time would not.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Of all modules that are read for a file. They take some 150 MB in ordinary code and at
# most 600 MB; the model of transformers that reads most, Llama, has 200,000.
MOST_TOKENS: Final = 1_000_000
# The model of transformers and diffusers that takes most, Qwen3 Omni, takes a fifth of
# it. It is some five seconds.
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
        units: those spent since the last reset; tokens: of the modules that were used
            since then.
        limit, most_tokens: after how many the analysis ends.
        cuts: number of calls of other packages since then that took too much.
    """

    __slots__ = ("_modules", "cuts", "limit", "most_tokens", "tokens", "units")

    def __init__(self) -> None:
        self.units = 0
        self.tokens = 0
        self.cuts = 0
        self.limit = LIMIT
        self.most_tokens = MOST_TOKENS
        self._modules: set[Path] = set()

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit has been passed."""
        return self.units > self.limit or self.tokens > self.most_tokens

    def reset(self) -> None:
        """Start to count anew, for another file."""
        self.units = self.tokens = self.cuts = 0
        self._modules.clear()

    def use_module(self, path: Path, tokens: int) -> None:
        """Count a module, once for each file that is analysed, whether it has to be
        read or is known already.
        """
        if path not in self._modules:
            self._modules.add(path)
            self.tokens += tokens

    @contextlib.contextmanager
    def ending_call(self) -> Iterator[None]:
        """A call of another package, which ends where the file's work does: the file
        goes on as if it had not been made.

        After one that has ended so, all others may take a part only, less and less.
        """
        start, limit = self.units, self.limit
        if self.cuts:
            self.limit = min(limit, start + (limit >> 2 + self.cuts))
        try:
            yield
        except WorkLimitError:
            if self.tokens > self.most_tokens:
                raise
            self.cuts += 1
            self.units = start
        finally:
            self.limit = limit


meter: Final = WorkMeter()
