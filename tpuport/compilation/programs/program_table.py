"""The programs of a function, by their keys."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

# Of one key that are kept: they differ in settings of jax, or in what no key has.
_MOST_PROGRAMS = 4

Made = TypeVar("Made")


class ProgramTable(Generic[Made]):
    """Programs by their keys. Several may have one key: which of them a call fits is
    known when it runs.
    """

    def __init__(self) -> None:
        self._programs: dict[Hashable, list[Made]] = {}

    def knows(self, key: Hashable) -> bool:
        """Whether there is a program with this key."""
        return key in self._programs

    def known(self, key: Hashable) -> Iterator[Made]:
        """The programs with a key, the one that was used last first."""
        programs = self._programs.get(key, [])
        for number, program in enumerate(tuple(programs)):
            if number:
                programs.remove(program)
                programs.insert(0, program)
            yield program

    def add(self, key: Hashable, program: Made) -> None:
        """Keep a program."""
        programs = self._programs.setdefault(key, [])
        programs.insert(0, program)
        del programs[_MOST_PROGRAMS:]
