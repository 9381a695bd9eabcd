"""Whether a loop over blocks is the better program, and which calls of a list's blocks
are put into one.

What compiling real models both ways has shown: seconds of lowering and compiling
together, and HBM for temporaries and code of one device, on two busy cores
(HunyuanVideo-1.5 with the compiler's effort -1):

| program | apart | in a loop |
|---|---|---|
| Llama-2-7B, forward of 1024 tokens, v5e:2x4, tp=8 | 37 s, 214 MB | 20 s, 6 MB |
| Llama-2-7B, prefill of 1024 tokens, v5e:2x4, tp=8 | 155 s, 781 MB | 66 s, 81 MB |
| HunyuanVideo-1.5, 54 blocks, v6e:2x4, sp=4 tp=2 | 296 s, 2420 MB | 58 s, 1982 MB |

The figures for temporaries are upper bounds: the compiler's sum counts gaps between
arrays twice. A loop can take more: 4 blocks of HunyuanVideo-1.5 with sp=8 take 2164 MB
apart and 2936 MB in a loop, which is what 54 blocks take too.

A step of decoding takes one cache array for each layer: to loop over them they would
have to be copied together. Given stacked, it compiles in 9 s instead of 26 s, but the
loop writes the whole cache in each step, and not one column of it.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpuport.compat import jaxprs
from tpuport.compilation.layers.block_calls import LiveProgram, extend_calls
from tpuport.compilation.layers.equivalence import Comparison, Difference
from tpuport.compilation.layers.scan_roles import NoScanError, Run, analyze_run
from tpuport.compilation.layers.stacks import Stack
from tpuport.trace_errors.libraries import is_library_file

# Fewer blocks than this are compiled in seconds either way.
_MIN_BLOCKS = 8
# Blocks of different kinds may take turns; this is the most of them in a scan's body.
_MAX_PERIOD = 12


@dataclasses.dataclass(frozen=True)
class ScanDecision:
    """Whether to scan, as its truth value, and why."""

    scan: bool
    reason: str

    def __bool__(self) -> bool:
        return self.scan


def decide_scan(stacks: Sequence[Stack], task: str) -> ScanDecision:
    """Whether these blocks should be in loops, for a task: "forward", "prefill" or
    "decode".
    """
    if task == "decode":
        reason = (
            "each layer's cache is an array of its own, which a loop would have to copy"
        )
        return ScanDecision(False, reason)
    longest = max((stack.count for stack in stacks), default=0)
    if longest < _MIN_BLOCKS:
        return ScanDecision(
            False, f"{longest} identical blocks are compiled in seconds either way"
        )
    reason = "a loop is compiled several times sooner, and what does not fit is tried without"
    return ScanDecision(True, f"{longest} identical blocks: {reason}")


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A possible scan: `count` iterations of `period` units each, from the unit `start`
    on.
    """

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The first unit after it."""
        return self.start + self.count * self.period

    def rank(self) -> tuple[int, int, int]:
        """What leaves most units out of the program comes first, then the smaller body,
        then the earlier.
        """
        units_saved = (self.count - 1) * self.period
        return -units_saved, self.period, self.start

    def iterations(self) -> Iterator[tuple[int, int]]:
        """The first unit of each iteration, and the first after it."""
        return itertools.pairwise(range(self.start, self.end + 1, self.period))

    def split_at(self, iteration: int) -> list["_Candidate"]:
        """What remains if the scan fails at one of its iterations."""
        # A failure at iteration 0 is one of the first iteration alone, which is left
        # out.
        count = max(iteration, 1)
        before = _Candidate(self.start, self.period, count)
        after = _Candidate(before.end, self.period, self.count - count)
        return [part for part in (before, after) if part.count > 1]


class SelectedRun(NamedTuple):
    """A run that will be a scan: the index of its list of blocks, the run, and the
    number of block calls in it.
    """

    list_index: int
    run: Run
    calls: int


class RunSelector:
    """Selects the scans of one program.

    Attributes:
        selected: the runs so far.
        reasons: why calls of a list's blocks are left out, by index of the list; the
            first reason that was met.
    """

    def __init__(self, program: LiveProgram) -> None:
        self._program = program
        self._comparison = Comparison()
        self._used: set[int] = set()
        self.selected: list[SelectedRun] = []
        self.reasons: dict[int, str] = {}

    def select(self, list_index: int, calls: Sequence[Sequence[int]]) -> None:
        """Put the calls of one list's blocks into scans if they allow it."""
        # What stands between two blocks is repeated with them.
        units = extend_calls(self._program, calls)
        kinds = self._unit_kinds(list_index, units)
        self._select_between(list_index, units, kinds, 0, len(units))

    @property
    def runs(self) -> list[Run]:
        """The selected runs without what belongs to them."""
        return [selected.run for selected in self.selected]

    def drop_last(self) -> None:
        """Leave out the run that was selected last, which takes from another one and
        gives to it.
        """
        reason = "its blocks take from those of another list, and give to them"
        self.reasons[self.selected.pop().list_index] = reason

    def _select_between(
        self,
        list_index: int,
        units: list[list[int]],
        kinds: list[int],
        first: int,
        end: int,
    ) -> None:
        """Select the best scan among these units, then others before and after it."""
        candidates = set(_candidates(kinds, first, end))
        # A part of a candidate that failed may be one that failed before.
        tried: set[_Candidate] = set()
        while candidates:
            candidate = min(candidates, key=_Candidate.rank)
            candidates.remove(candidate)
            tried.add(candidate)
            try:
                run = self._try_run(units, candidate)
            except NoScanError as error:
                call = candidate.start + candidate.period * error.unit
                self.reasons.setdefault(list_index, f"call {call}: {error}")
                candidates.update(set(candidate.split_at(error.unit)) - tried)
                continue
            self._used.update(run.indices)
            self.selected.append(
                SelectedRun(list_index, run, candidate.period * candidate.count)
            )
            self._select_between(list_index, units, kinds, first, candidate.start)
            self._select_between(list_index, units, kinds, candidate.end, end)
            return

    def _try_run(self, units: list[list[int]], candidate: _Candidate) -> Run:
        flatten = itertools.chain.from_iterable
        iterations = [
            list(flatten(units[start:end])) for start, end in candidate.iterations()
        ]
        # Units of equal kinds may still differ in what they take from one another,
        # which only the whole body shows.
        first, *others = map(self._program.equations_of, iterations)
        for number, other in enumerate(others, start=1):
            difference = self._comparison.first_difference(first, other)
            if difference is not None:
                raise NoScanError(difference.description, number)
        return analyze_run(self._program, iterations)

    def _unit_kinds(self, list_index: int, units: list[list[int]]) -> list[int]:
        """A number for each unit, equal for those that do the same, and negative for
        units in other scans.
        """
        representatives: list[list[int]] = []
        kinds: list[int] = []
        for number, unit in enumerate(units):
            if self._used.isdisjoint(unit):
                kinds.append(self._unit_kind(list_index, unit, number, representatives))
            else:
                self.reasons.setdefault(
                    list_index, "its blocks take turns with those of another list"
                )
                kinds.append(-1 - number)
        return kinds

    def _unit_kind(
        self,
        list_index: int,
        unit: list[int],
        number: int,
        representatives: list[list[int]],
    ) -> int:
        """The index of the first representative that does the same; the unit becomes
        one if there is none.
        """
        equations = self._program.equations_of(unit)
        difference: Difference | None = None
        for kind, representative in enumerate(representatives):
            known = self._program.equations_of(representative)
            difference = self._comparison.first_difference(known, equations)
            if difference is None:
                return kind
        if difference is not None:
            # A unit may end before the one that it differs from.
            location = _model_line(equations[min(difference.index, len(unit) - 1)])
            reason = f"call {number} differs from one before: {difference.description}{location}"
            self.reasons.setdefault(list_index, reason)
        representatives.append(unit)
        return len(representatives) - 1


def _model_line(equation: jaxprs.Equation) -> str:
    """The file and line, in parentheses, of the innermost frame that is not in a
    library; empty if there is none.
    """
    for file, line, _ in jaxprs.source_frames(equation):
        if not is_library_file(file):
            return f" ({file}, line {line})"
    return ""


def _candidates(kinds: list[int], first: int, end: int) -> Iterator[_Candidate]:
    """Every repetition of units of the same kinds, as often as it goes on."""
    longest = min(_MAX_PERIOD, (end - first) // 2)
    for period in range(1, longest + 1):
        for start in range(first, end - 2 * period + 1):
            body = kinds[start : start + period]
            count = _count_repetitions(kinds[start:end], body)
            # The shorter period finds the same units with a smaller body.
            if count > 1 and not _is_repetition(body):
                yield _Candidate(start, period, count)


def _count_repetitions(kinds: list[int], body: list[int]) -> int:
    period = len(body)
    starts = range(0, len(kinds), period)
    repetitions = itertools.takewhile(
        lambda start: kinds[start : start + period] == body, starts
    )
    return sum(1 for _ in repetitions)


def _is_repetition(body: list[int]) -> bool:
    """Whether a body is itself a shorter one several times."""
    length = len(body)
    divisors = (part for part in range(1, length) if length % part == 0)
    return any(body == body[:part] * (length // part) for part in divisors)
