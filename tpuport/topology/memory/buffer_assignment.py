"""How the compiler places a program's arrays in memory: its buffer assignment, which it
writes into files on request.

It writes them before it makes code, and before it compares with the size of the memory.
So they exist also for a program that is then refused, and for one that no code can be
made for, as its addresses would be outside of the memory.
"""

import collections
import contextlib
import dataclasses
import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.topology.hlo import HBM
from tpuport.topology.hlo.array_types import parse_numbers

_PROGRAM: Final = ".after_optimizations.txt"
_BUFFERS: Final = ".after_optimizations-buffer-assignment.txt"
_RANGES: Final = ".after_optimizations-live-range.txt"
# "allocation 6: size 512, color 1, preallocated-temp:", "allocation 0: size 32, page 0,
# parameter 2, shape |..| at ..:". The color is the memory space; HBM's is often left
# out, and releases of the compiler add other fields.
_ALLOCATION: Final = re.compile(r"^allocation \d+: size (\d+)(.*):$", re.MULTILINE)
_COLOR: Final = re.compile(r", color (\d+)")
# " value: <57 fusion.3{0} @0> (size=512,offset=0): bf16[8,128]{1,0}"; a value where
# others meet has "(phi)".
_VALUE: Final = re.compile(
    r"^ value: <\d+ (\S+?)(\{[\d,]*\})? (?:\(phi\) )?@\d+> \(size=(\d+),offset=(\d+)\): (.*)$",
    re.MULTILINE,
)
_RANGE: Final = re.compile(r"^\s+(\S+\{[\d,]*\}):(\d+)-(\d+)$", re.MULTILINE)


class LiveArray(NamedTuple):
    """An array that has a place in memory.

    Attributes:
        instruction: the name of the one that makes it.
        path: which element of the instruction's result it is; empty for the whole
            result.
        nbytes: as tiles pad it; type: as HLO writes it.
    """

    instruction: str
    path: tuple[int, ...]
    nbytes: int
    type: str


@dataclasses.dataclass(frozen=True)
class BufferAssignment:
    """What a program needs of a device's HBM.

    Attributes:
        arguments, outputs, temporaries: bytes; `outputs` without those that take the
            place of a donated argument, `temporaries` with constants.
        largest: bytes of the largest part that is in one piece; all temporaries are
            one.
        gaps: bytes of `temporaries` that are unused when the arrays take most.
        peak_arrays: the temporaries that are live at that moment, and the outputs; the
            largest first.
        text: the program as it would have run.
    """

    arguments: int
    outputs: int
    temporaries: int
    largest: int
    gaps: int
    peak_arrays: tuple[LiveArray, ...]
    text: str

    @property
    def used(self) -> int:
        """Bytes of everything but the program's code."""
        return self.arguments + self.outputs + self.temporaries


class _PlacedArray(NamedTuple):
    """An array at an offset in its allocation; `name` is what its live range is listed
    under.
    """

    name: str
    offset: int
    array: LiveArray


class _Allocation(NamedTuple):
    nbytes: int
    kind: str
    arrays: list[_PlacedArray]

    @property
    def role(self) -> str:
        """Whose memory this is; an argument whose place an output takes over is an
        argument.
        """
        if ", parameter " in self.kind:
            return "argument"
        if "maybe-live-out" in self.kind:
            return "output"
        return "temporary"


# The first and the last moment, as positions in the program's order; the array is live
# at both.
_LiveRange = tuple[int, int]


def dump_options(directory: str) -> dict[str, str | bool]:
    """Compiler options with which it writes what `read` reads."""
    return {"xla_dump_to": directory, "xla_dump_hlo_as_text": True}


def read(directory: str) -> BufferAssignment | None:
    """The assignment in a directory, of several programs that of the one that takes
    most; None if there is none.
    """
    assignments = []
    for file in sorted(Path(directory).glob(f"*{_BUFFERS}")):
        stem = str(file).removesuffix(_BUFFERS)
        # A compiler that dies may not have written all three.
        with contextlib.suppress(FileNotFoundError):
            texts = [
                Path(stem + suffix).read_text()
                for suffix in (_BUFFERS, _RANGES, _PROGRAM)
            ]
            assignments.append(parse(*texts))
    return max(assignments, key=lambda assignment: assignment.used, default=None)


def parse(buffers: str, ranges: str, text: str) -> BufferAssignment:
    """An assignment from its three files: buffers, live ranges, and the optimized
    program.
    """
    live_ranges = {
        name: (int(first), int(last)) for name, first, last in _RANGE.findall(ranges)
    }
    allocations = list(_read_allocations(buffers))
    sizes: collections.Counter[str] = collections.Counter()
    temporaries: list[LiveArray] = []
    outputs: list[LiveArray] = []
    heap_bytes = 0
    for allocation in allocations:
        sizes[allocation.role] += allocation.nbytes
        if "preallocated-temp" in allocation.kind:
            heap_bytes += allocation.nbytes
            temporaries += _arrays_at_peak(allocation.arrays, live_ranges)
        elif allocation.role == "output" and allocation.arrays:
            outputs.append(_last_array(allocation, live_ranges))
    return BufferAssignment(
        arguments=sizes["argument"],
        outputs=sizes["output"],
        temporaries=sizes["temporary"],
        largest=max((allocation.nbytes for allocation in allocations), default=0),
        gaps=heap_bytes - sum(array.nbytes for array in temporaries),
        peak_arrays=tuple(
            sorted(temporaries + outputs, key=lambda array: -array.nbytes)
        ),
        text=text,
    )


def _read_allocations(buffers: str) -> Iterator[_Allocation]:
    """The allocations in HBM."""
    # Lines before the first allocation are about the program as a whole.
    _, *parts = _ALLOCATION.split(buffers)
    for size, kind, values in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        color = _COLOR.search(kind)
        if color is None or int(color[1]) == HBM:
            yield _Allocation(
                int(size), kind, list(map(_read_array, _VALUE.finditer(values)))
            )


def _read_array(value: re.Match[str]) -> _PlacedArray:
    instruction, braces, nbytes, offset, hlo_type = value.groups(default="{}")
    path = parse_numbers(braces.strip("{}"))
    return _PlacedArray(
        f"{instruction}{braces}",
        int(offset),
        LiveArray(instruction, path, int(nbytes), hlo_type),
    )


def _arrays_at_peak(
    arrays: Sequence[_PlacedArray], live_ranges: Mapping[str, _LiveRange]
) -> list[LiveArray]:
    """The arrays that are live at the moment when they take most.

    One that is written into another's place has the same offset, and the two count
    once.
    """
    starts: list[tuple[int, bool, _PlacedArray]] = []
    for placed in arrays:
        if placed.name in live_ranges:
            first, last = live_ranges[placed.name]
            starts += [(first, True, placed), (last + 1, False, placed)]
    live: dict[int, dict[_PlacedArray, None]] = {}  # by offset
    size = peak_size = 0
    peak: list[LiveArray] = []
    # At one moment, what ends comes before what starts: False sorts before True.
    events = sorted(starts, key=operator.itemgetter(0, 1))
    for _, changes in itertools.groupby(events, key=operator.itemgetter(0)):
        for _, is_start, placed in changes:
            sharing = live.setdefault(placed.offset, {})
            size -= _largest_nbytes(sharing)
            if is_start:
                sharing[placed] = None
            else:
                del sharing[placed]
            size += _largest_nbytes(sharing)
        if size > peak_size:
            peak_size = size
            peak = [_largest_array(sharing) for sharing in live.values() if sharing]
    return peak


def _largest_nbytes(sharing: Iterable[_PlacedArray]) -> int:
    return max((placed.array.nbytes for placed in sharing), default=0)


def _largest_array(sharing: Iterable[_PlacedArray]) -> LiveArray:
    return max(sharing, key=lambda placed: placed.array.nbytes).array


def _last_array(
    allocation: _Allocation, live_ranges: Mapping[str, _LiveRange]
) -> LiveArray:
    """Of the arrays that have an output's place one after another, the output."""
    return max(
        allocation.arrays, key=lambda placed: live_ranges.get(placed.name, (0, 0))[1]
    ).array
