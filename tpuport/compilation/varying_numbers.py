"""Which numbers of Python are arguments of a function's programs, and which program
serves which of them.

A number is a part of a program at first. When a call would make a second program, the
numbers that have changed since the first are given to its trace as `TracedNumber`s.
Those that the code needs for itself, as a shape or the length of a loop, are a part of
that program again: what its other arguments are decides which these are.
"""

import contextlib
from collections.abc import Hashable, Iterator

from tpuport.compilation.arguments.call_numbers import Numbers, NumbersFixed
from tpuport.compilation.prepared_call import PreparedCall
from tpuport.objects.traced_numbers import Guard, Path


class NumbersChanged(Exception):
    """Other numbers are arguments of the programs from now on."""


class VaryingNumbers:
    """The numbers of a function that have changed from one of its programs to the next.

    Attributes:
        paths: of these.
    """

    def __init__(self) -> None:
        self.paths: frozenset[Path] = frozenset()
        self._latest: Numbers = {}
        # By the key of a program with all of its numbers.
        self._fixed: dict[Hashable, frozenset[Path]] = {}
        self._guards: dict[Hashable, list[tuple[Guard, ...]]] = {}

    def learn(self, numbers: Numbers) -> bool:
        """Note the numbers of a call that needs a new program. Whether one has changed
        that had not changed before.
        """
        changed = {
            path
            for path, value in numbers.items()
            if self._latest.get(path, value) != value
        }
        self._latest |= numbers
        if changed <= self.paths:
            return False
        self.paths |= changed
        return True

    def fixed(self, call: PreparedCall) -> frozenset[Path]:
        """The numbers of a call that its program needs for themselves."""
        if not call.numbers:
            return frozenset()
        return self._fixed.get(call.key_of_numbers, frozenset())

    @contextlib.contextmanager
    def fixed_by_errors(self, call: PreparedCall) -> Iterator[None]:
        """Let the numbers of a call be a part of its program if the trace in this block
        needs them for themselves, or fails.

        Raises:
            NumbersChanged: they are from now on.
        """
        try:
            yield
        except NumbersFixed as error:
            paths = error.paths
        except Exception:
            # Code may refuse what is no int. If not, the trace without numbers fails as
            # well, with the error that is meant.
            if not call.numbers:
                raise
            paths = frozenset(call.numbers.paths)
        else:
            return
        key = call.key_of_numbers
        self._fixed[key] = self._fixed.get(key, frozenset()) | paths
        raise NumbersChanged

    def find_program(self, call: PreparedCall) -> int:
        """The number of the program of a call whose guards hold; the next one if there
        is none.
        """
        programs = self._guards.get(call.key_of_numbers, [])
        values = call.numbers.values
        return next(
            (
                number
                for number, guards in enumerate(programs)
                if all(guard.holds(values) for guard in guards)
            ),
            len(programs),
        )

    def add_program(self, call: PreparedCall, guards: tuple[Guard, ...]) -> None:
        """Note the program of a call, which has the next number."""
        if call.numbers:
            self._guards.setdefault(call.key_of_numbers, []).append(guards)
