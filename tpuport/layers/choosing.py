"""Which calls of a list's blocks are put into one scan: the longest runs of equal units, one or more to a turn."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from tpuport.layers import units as cutting
from tpuport.layers.roles import NoScan, Run, run_of
from tpuport.layers.sameness import Comparison, Difference
from tpuport.layers.sources import line_of
from tpuport.layers.units import Program

# Blocks that take turns: a scan's body holds at most so many.
_PERIOD = 12


@dataclasses.dataclass(frozen=True)
class Candidate:
    """`count` times `period` units from the one at `start` on."""

    start: int
    period: int
    count: int

    @property
    def saved(self) -> int:
        """Units that are not in the program any more."""
        return (self.count - 1) * self.period

    def halves(self, number: int) -> list["Candidate"]:
        """What is left where the scan fails at one of its turns."""
        split = max(number, 1)
        parts = [
            Candidate(self.start, self.period, split),
            Candidate(self.start + split * self.period, self.period, self.count - split),
        ]
        return [part for part in parts if part.count > 1]


class Chooser:
    """The scans of one program, and why there are not more.

    Attributes:
        runs: chosen so far, with the number of calls in each.
        reasons: why calls are left out, the first of each list.
    """

    def __init__(self, found: Program) -> None:
        self._found = found
        self._comparison = Comparison()
        self._used: set[int] = set()
        self.runs: list[tuple[int, Run, int]] = []
        self.reasons: dict[int, str] = {}

    def choose(self, place: int, calls: Sequence[Sequence[int]]) -> None:
        """Put the calls of one list's blocks into scans where they allow it."""
        units = cutting.units(self._found, calls)
        kinds = self._kinds(place, units)
        self._between(place, units, kinds, 0, len(units))

    def _between(self, place: int, units: list[list[int]], kinds: list[int], first: int, end: int) -> None:
        if end - first < 2:
            return
        left = sorted(_candidates(kinds, first, end), key=lambda one: (-one.saved, one.period, one.start))
        tried: set[Candidate] = set()
        while left:
            candidate = left.pop(0)
            if candidate in tried:
                continue
            tried.add(candidate)
            try:
                run = self._run(units, candidate)
            except NoScan as reason:
                self.reasons.setdefault(place, self._said(units, candidate, reason))
                left += candidate.halves(reason.number)
                left.sort(key=lambda one: (-one.saved, one.period, one.start))
                continue
            self._used.update(number for unit in run.units for number in unit)
            self.runs.append((place, run, candidate.period * candidate.count))
            self._between(place, units, kinds, first, candidate.start)
            self._between(place, units, kinds, candidate.start + candidate.period * candidate.count, end)
            return

    def _run(self, units: list[list[int]], candidate: Candidate) -> Run:
        turns = [
            list(itertools.chain.from_iterable(units[start : start + candidate.period]))
            for start in range(
                candidate.start, candidate.start + candidate.count * candidate.period, candidate.period
            )
        ]
        pieces = [[self._found.equations[number] for number in turn] for turn in turns]
        for number, piece in enumerate(pieces[1:], start=1):
            difference = self._comparison.difference(pieces[0], piece)
            if difference is not None:
                raise NoScan(difference.what, number)
        return run_of(self._found, turns)

    def _kinds(self, place: int, units: list[list[int]]) -> list[int]:
        """A number for each unit, equal for those that do the same."""
        known: list[list] = []
        kinds: list[int] = []
        for index, unit in enumerate(units):
            piece = [self._found.equations[number] for number in unit]
            if self._used & set(unit):
                self.reasons.setdefault(place, "its blocks take turns with those of another list")
                kinds.append(-1 - index)
                continue
            for kind, other in enumerate(known):
                difference = self._comparison.difference(other, piece)
                if difference is None:
                    kinds.append(kind)
                    break
                if kind == len(known) - 1:
                    self._differ(place, units, index, difference)
            else:
                kinds.append(len(known))
                known.append(piece)
        return kinds

    def _differ(self, place: int, units: list[list[int]], index: int, difference: Difference) -> None:
        number = units[index][min(difference.number, len(units[index]) - 1)]
        where = line_of(self._found.equations[number])
        self.reasons.setdefault(
            place, f"call {index} differs from one before: {difference.what}{f' ({where})' if where else ''}"
        )

    @staticmethod
    def _said(units: list[list[int]], candidate: Candidate, reason: NoScan) -> str:
        return f"call {candidate.start + candidate.period * reason.number}: {reason}"


def _candidates(kinds: list[int], first: int, end: int) -> Iterator[Candidate]:
    for period in range(1, min(_PERIOD, (end - first) // 2) + 1):
        for start in range(first, end - 2 * period + 1):
            turn, count = kinds[start : start + period], 1
            while (
                start + (count + 1) * period <= end
                and kinds[start + count * period : start + (count + 1) * period] == turn
            ):
                count += 1
            if count > 1 and not _repeats(turn):
                yield Candidate(start, period, count)


def _repeats(turn: list[int]) -> bool:
    """Whether a turn is itself a shorter one several times."""
    length = len(turn)
    return any(turn == turn[:part] * (length // part) for part in range(1, length) if length % part == 0)
