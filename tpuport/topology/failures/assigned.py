"""What the compiler sets aside for a program, by the buffer assignment that it writes into a directory when asked to.

It writes before it makes code, and before it compares with the memory that there is: so also of a program that is then
refused, and of one that no code can be made for, as its addresses would be outside of the memory.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.topology.hlo import HBM

_TEXT: Final = ".after_optimizations.txt"
_BUFFERS: Final = ".after_optimizations-buffer-assignment.txt"
_RANGES: Final = ".after_optimizations-live-range.txt"
# "allocation 6: size 512, color 1, preallocated-temp:", "allocation 0: size 32, parameter 2, shape |..| at ..:".
_ALLOCATION: Final = re.compile(r"allocation \d+: size (\d+)(?:, color (\d+))?,? ?(.*):$")
_PARAMETER: Final = re.compile(r"parameter \d+, ")
# " value: <57 fusion.3{0} @0> (size=512,offset=0): bf16[8,128]{1,0}"; a place where values meet has "(phi)".
_VALUE: Final = re.compile(
    r" value: <\d+ (\S+?)(\{[\d,]*\})? (?:\(phi\) )?@\d+> \(size=(\d+),offset=(\d+)\): (.*)$"
)
_RANGE: Final = re.compile(r"^\s+(\S+\{[\d,]*\}):(\d+)-(\d+)$", re.MULTILINE)


class Value(NamedTuple):
    """An array that the compiler has found a place for.

    Attributes:
        instruction: that makes it; place: of a tuple, which element it is, empty for the tuple itself and for an array.
        nbytes: as tiles pad it; type: as HLO writes it.
    """

    instruction: str
    place: str
    nbytes: int
    type: str


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What a program is to have of a device's HBM.

    Attributes:
        arguments, outputs, temporaries: bytes; `outputs` without those that have a donated argument's place,
            `temporaries` with constants.
        largest: bytes of the largest part that is in one piece; all temporaries are one.
        gaps: of `temporaries`, bytes between arrays when the arrays take most.
        held: the temporaries that are there at that moment, and the outputs; the largest first.
        text: the program as it would have run.
    """

    arguments: int
    outputs: int
    temporaries: int
    largest: int
    gaps: int
    held: tuple[Value, ...]
    text: str

    @property
    def used(self) -> int:
        """All of it; the code of the program comes on top."""
        return self.arguments + self.outputs + self.temporaries


class _Placed(NamedTuple):
    name: str  # as live ranges have it
    offset: int
    value: Value


class _Allocation(NamedTuple):
    nbytes: int
    kind: str
    values: list[_Placed]


_Life = tuple[int, int]  # the first and the last moment, as places in the program's order


def options(directory: str) -> dict[str, str | bool]:
    """Compiler options with which it writes what `read` reads."""
    return {"xla_dump_to": directory, "xla_dump_hlo_as_text": True}


def read(directory: str) -> Assignment | None:
    """What the compiler wrote; None where it wrote nothing. Of several programs, that which takes most."""
    found = []
    for file in sorted(Path(directory).glob(f"*{_BUFFERS}")):
        stem = str(file).removesuffix(_BUFFERS)
        if Path(stem + _TEXT).exists() and Path(stem + _RANGES).exists():
            found.append(parse(*(Path(stem + end).read_text() for end in (_BUFFERS, _RANGES, _TEXT))))
    return max(found, key=lambda one: one.used, default=None)


def parse(buffers: str, ranges: str, text: str) -> Assignment:
    """An assignment from its three files: buffers, live ranges, and the optimized program."""
    allocations = list(_allocations(buffers))
    lives = {name: (int(start), int(end)) for name, start, end in _RANGE.findall(ranges)}
    sizes = {"argument": 0, "output": 0, "temporary": 0}
    for one in allocations:
        sizes[_role(one.kind)] += one.nbytes
    heaps = [one for one in allocations if "preallocated-temp" in one.kind]
    held = [value for one in heaps for value in _at_peak(one.values, lives)]
    made = [_last(one, lives) for one in allocations if _role(one.kind) == "output" and one.values]
    return Assignment(
        arguments=sizes["argument"], outputs=sizes["output"], temporaries=sizes["temporary"],
        largest=max((one.nbytes for one in allocations), default=0),
        gaps=sum(one.nbytes for one in heaps) - sum(one.nbytes for one in held),
        held=tuple(sorted([*held, *made], key=lambda one: -one.nbytes)), text=text,
    )  # fmt: skip


def _allocations(buffers: str) -> Iterable[_Allocation]:
    """Those in HBM."""
    current: _Allocation | None = None
    for line in buffers.splitlines():
        if found := _ALLOCATION.match(line):
            if current is not None:
                yield current
            in_hbm = int(found[2] or HBM) == HBM
            current = _Allocation(int(found[1]), found[3], []) if in_hbm else None
        elif current is not None and (found := _VALUE.match(line)):
            place = found[2] or "{}"
            value = Value(found[1], place[1:-1], int(found[3]), found[5])
            current.values.append(_Placed(f"{found[1]}{place}", int(found[4]), value))
    if current is not None:
        yield current


def _role(kind: str) -> str:
    """Of an allocation; an argument that an output takes over is an argument."""
    if _PARAMETER.match(kind):
        return "argument"
    return "output" if "maybe-live-out" in kind else "temporary"


def _at_peak(values: list[_Placed], lives: Mapping[str, _Life]) -> list[Value]:
    """The values that are there at the moment when they take most; both ends of a live range belong to it.

    One that is written into another's place has the same offset, and there is room for one of them.
    """
    events: list[tuple[int, int, _Placed]] = []
    for one in values:
        if one.name in lives:
            start, end = lives[one.name]
            events += [(start, 1, one), (end + 1, 0, one)]
    live: dict[int, dict[_Placed, None]] = {}
    most, best, size = 0, list[Value](), 0
    for _, changes in itertools.groupby(sorted(events, key=lambda one: one[:2]), key=lambda one: one[0]):
        for _, starts, one in changes:
            there = live.setdefault(one.offset, {})
            size -= _nbytes(there)
            if starts:
                there[one] = None
            else:
                del there[one]
            size += _nbytes(there)
        if size > most:
            most, best = size, [_largest(there) for there in live.values() if there]
    return best


def _nbytes(there: Iterable[_Placed]) -> int:
    return max((one.value.nbytes for one in there), default=0)


def _largest(there: Iterable[_Placed]) -> Value:
    return max(there, key=lambda one: one.value.nbytes).value


def _last(allocation: _Allocation, lives: Mapping[str, _Life]) -> Value:
    """Of the values that have an output's place one after another, the output."""
    return max(allocation.values, key=lambda one: lives.get(one.name, (0, 0))[1]).value
