"""The largest arrays of a program that does not fit, and the lines of code that make
them.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tpuport.base.mappings import group_by
from tpuport.topology import hlo
from tpuport.topology.compile_report import Buffer, Source
from tpuport.topology.hlo import Instruction, Value, ValueFlow
from tpuport.topology.hlo.array_types import search_group
from tpuport.topology.memory.buffer_assignment import BufferAssignment, LiveArray

SIZE: Final = r"([\d.]+)([KMGTP]?)i?B?"  # as the compiler writes bytes: "15.75G"
ALLOCATION: Final = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)"
    r"(?:.*?\bshape = '([^'{]*))?.*?\bspace=(\w+)(?:.*?\btag = '([^']*)')?"
)
_UNITS: Final = {
    "": 1,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
    "P": 1 << 50,
}
# An entry of the compiler's list: "1. Size: 2.00G", then lines "Name: value".
_ENTRY: Final = re.compile(rf"^\s*\d+\. Size: {SIZE}\s*$", re.MULTILINE)
_FIELD: Final = re.compile(
    r"^\s+(Operator|Shape|Unpadded size|XLA label|Tag|Source): (.*)$", re.MULTILINE
)
_OPCODE: Final = re.compile(r"= ?(?:\S+ )?([a-z][\w-]*)\(")
_OPERATOR_SOURCE: Final = re.compile(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?')
_SOURCE: Final = re.compile(r"(.+?):(\d+)")
_WINDOW: Final = re.compile(r"(input|output) window.*?window shape is (\S+?),? ")
_NO_SOURCE: Final = Source("", 0, "")
_MOST_ARRAYS: Final = 12
_FARTHEST: Final = 12  # steps from an array to the instruction that makes it
_VIEWS: Final = {"tuple", "get-tuple-element", "while", "parameter"}
_MOVES: Final = {"bitcast", "copy", "copy-done", "copy-start", "optimization-barrier"}


class LineArrays(NamedTuple):
    """Arrays that one line of code makes: how much they take together."""

    source: Source | None
    nbytes: int
    buffers: tuple[Buffer, ...]


def group_by_line(buffers: Iterable[Buffer]) -> tuple[LineArrays, ...]:
    """Arrays by the line of code that makes them, what takes most first."""
    lines = []
    for group in group_by(buffers, _line).values():
        largest_first = sorted(group, key=_total_nbytes, reverse=True)
        lines.append(
            LineArrays(
                group[0].source, sum(map(_total_nbytes, group)), tuple(largest_first)
            )
        )
    return tuple(sorted(lines, key=lambda line: -line.nbytes))


def _line(buffer: Buffer) -> tuple[str, int]:
    source = buffer.source or _NO_SOURCE
    return source.file, source.line


def _total_nbytes(buffer: Buffer) -> int:
    return buffer.nbytes * buffer.count


def parse_size(number: str, unit: str) -> int:
    """Bytes of what `SIZE` matches."""
    return int(float(number) * _UNITS[unit])


def assigned_arrays(assignment: BufferAssignment) -> list[Buffer]:
    """The arrays that are live when they take most, those of one line and shape
    together, largest first.
    """
    finder = _SourceFinder(hlo.parse(assignment.text))
    # A tuple is a few addresses.
    arrays = [
        array for array in assignment.peak_arrays if not array.type.startswith("(")
    ]
    buffers = _count_equal(map(finder.describe, arrays))
    return sorted(buffers, key=_total_nbytes, reverse=True)[:_MOST_ARRAYS]


class _SourceFinder:
    """The lines of code that arrays come from: for what a loop carries, the line in its
    body and not the loop's.
    """

    def __init__(self, program: hlo.Program) -> None:
        self._instructions = {
            instruction.name: instruction for instruction in program.instructions
        }
        self._program = program
        self._flow = ValueFlow(program.computations, _moved_operands)

    def describe(self, array: LiveArray) -> Buffer:
        """An array with its operation and its line, as far as the program has the
        instruction that makes it.
        """
        shape = array.type.partition("{")[0]
        instruction = self._instructions.get(array.instruction)
        if instruction is None:
            return Buffer(shape, array.nbytes, "", 1)
        return Buffer(
            shape,
            array.nbytes,
            instruction.operation,
            1,
            self._source(Value(instruction, array.path)),
        )

    def _source(self, value: Value) -> Source | None:
        """The line that a value comes from."""
        maker = value
        for _ in range(_FARTHEST):
            maker = self._previous(maker)
        return self._program.source(maker.instruction) or self._program.source(
            value.instruction
        )

    def _previous(self, value: Value) -> Value:
        """The value that this one is, one step back; itself if its instruction makes
        it.
        """
        sources = self._sources(value)
        if not sources:
            return value
        # What a loop starts with, and what a round makes of it: which is nothing if it
        # hands its parameter on.
        start, result = sources[0], sources[-1]
        while len(sources) > 1 and len(self._sources(result)) == 1:
            [result] = self._sources(result)
        if result.instruction.operation == "parameter":
            return start
        return result

    def _sources(self, value: Value) -> list[Value]:
        """The values that this one is, if its instruction only moves or views them; a
        fusion makes what it gives.
        """
        if value.instruction.operation in _VIEWS | _MOVES:
            return self._flow.sources(value)
        return []


def _moved_operands(
    instruction: Instruction, operands: Sequence[Instruction]
) -> Sequence[Instruction]:
    """The operand that is only moved; an instruction with a line of its own was asked
    for there.
    """
    if instruction.operation in _MOVES and instruction.frame is None:
        return operands[:1]
    return ()


def listed_arrays(message: str) -> list[Buffer]:
    """The arrays that a message lists under "Largest program allocations", or the one
    that it is about.
    """
    allocation = ALLOCATION.search(message)
    if allocation is not None:
        nbytes, _, shape, _, tag = allocation.groups(default="")
        return [
            Buffer(_shape(tag, shape), int(nbytes), _purpose(tag) or "allocation", 1)
        ]
    # Between two entries are the fields of the first.
    _, *parts = _ENTRY.split(message)
    sizes = map(parse_size, parts[::3], parts[1::3])
    return _count_equal(map(_read_entry, sizes, parts[2::3]))


def _read_entry(nbytes: int, text: str) -> Buffer:
    fields = dict(_FIELD.findall(text))
    tag = fields.get("Tag", "")
    operation = _purpose(tag) or search_group(_OPCODE, fields.get("XLA label", ""))
    shape = _shape(tag, fields.get("Shape", "").partition("{")[0])
    return Buffer(shape, nbytes, operation, 1, _listed_source(fields))


def _listed_source(fields: dict[str, str]) -> Source | None:
    operator = _OPERATOR_SOURCE.search(fields.get("Operator", ""))
    line = operator or _SOURCE.match(fields.get("Source", ""))
    if line is None:
        return None
    return Source(line[1], int(line[2] or 0), "")


def _purpose(tag: str) -> str:
    """What an allocation in a kernel is for: "input window", "scratch operand"."""
    window = _WINDOW.search(tag)
    if window is None:
        return tag.partition(".")[0]
    return f"{window[1]} window"


def _shape(tag: str, shape: str) -> str:
    """The array's shape, also if the compiler gives its bytes as the shape."""
    window = _WINDOW.search(tag)
    if window is None:
        return shape
    return window[2]


def _count_equal(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Equal buffers, each of count 1, as one with their number."""
    return [
        dataclasses.replace(buffer, count=count)
        for buffer, count in collections.Counter(buffers).items()
    ]
