"""The largest arrays of a program that does not fit, and the lines of code that make them."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tpuport.topology import hlo
from tpuport.topology.compile_report import Buffer, Source
from tpuport.topology.hlo import Instruction, Value, ValueFlow
from tpuport.topology.hlo.array_types import search_group
from tpuport.topology.memory.buffer_assignment import BufferAssignment

SIZE: Final = r"([\d.]+)([KMGTP]?)i?B?"  # as the compiler writes bytes: "15.75G"
ALLOCATION: Final = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)"
    r"(?:.*?\bshape = '([^'{]*))?.*?\bspace=(\w+)(?:.*?\btag = '([^']*)')?"
)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
# An entry of the compiler's list: "1. Size: 2.00G", then lines "Name: value".
_ENTRY: Final = re.compile(rf"^\s*\d+\. Size: {SIZE}\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^\s+(Operator|Shape|Unpadded size|XLA label|Tag|Source): (.*)$", re.MULTILINE)
_OPCODE: Final = re.compile(r"= ?(?:\S+ )?([a-z][\w-]*)\(")
_OPERATOR_SOURCE: Final = re.compile(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?')
_SOURCE: Final = re.compile(r"(.+?):(\d+)")
_WINDOW: Final = re.compile(r"(input|output) window.*?window shape is (\S+?),? ")
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
    groups: dict[tuple[str, int] | None, list[Buffer]] = {}
    for buffer in buffers:
        line = (buffer.source.file, buffer.source.line) if buffer.source else None
        groups.setdefault(line, []).append(buffer)
    lines = [
        LineArrays(
            group[0].source,
            sum(map(_total_nbytes, group)),
            tuple(sorted(group, key=_total_nbytes, reverse=True)),
        )
        for group in groups.values()
    ]
    return tuple(sorted(lines, key=lambda line: -line.nbytes))


def _total_nbytes(buffer: Buffer) -> int:
    return buffer.nbytes * buffer.count


def parse_size(number: str, unit: str) -> int:
    """Bytes of what `SIZE` matches."""
    return int(float(number) * _UNITS[unit])


def assigned_arrays(assignment: BufferAssignment) -> list[Buffer]:
    """The arrays that are live when they take most, those of one line and shape together, largest first."""
    finder = _SourceFinder(hlo.parse(assignment.text))
    # A tuple is a few addresses.
    arrays = [array for array in assignment.peak_arrays if not array.type.startswith("(")]
    buffers = []
    for array in arrays:
        operation, source = "", None
        if instruction := finder.instructions.get(array.instruction):
            operation, source = instruction.operation, finder.source(Value(instruction, array.path))
        buffers.append(Buffer(array.type.partition("{")[0], array.nbytes, operation, 1, source))
    return sorted(_count_equal(buffers), key=_total_nbytes, reverse=True)[:_MOST_ARRAYS]


class _SourceFinder:
    """The lines of code that arrays come from: for what a loop carries, the line in its body and not the loop's."""

    def __init__(self, program: hlo.Program) -> None:
        self.instructions = {instruction.name: instruction for instruction in program.instructions}
        self._program = program
        self._flow = ValueFlow(program.computations, _moved_operands)

    def source(self, value: Value) -> Source | None:
        """The line that a value comes from."""
        maker = value
        for _ in range(_FARTHEST):
            previous = self._previous(maker)
            if previous is None:
                break
            maker = previous
        return self._program.source(maker.instruction) or self._program.source(value.instruction)

    def _previous(self, value: Value) -> Value | None:
        """The value that this one is, one step back; None if its instruction makes it."""
        sources = self._sources(value)
        if len(sources) < 2:
            return next(iter(sources), None)
        # What a loop starts with, and what a round makes of it: which is nothing if it hands its parameter on.
        start, result = sources[0], sources[-1]
        while len(self._sources(result)) == 1:
            [result] = self._sources(result)
        return start if result.instruction.operation == "parameter" else result

    def _sources(self, value: Value) -> list[Value]:
        """The values that this one is, if its instruction only moves or views them; a fusion makes what it gives."""
        if value.instruction.operation in _VIEWS | _MOVES:
            return self._flow.sources(value)
        return []


def _moved_operands(instruction: Instruction, operands: Sequence[Instruction]) -> Sequence[Instruction]:
    """The operand that is only moved; an instruction with a line of its own was asked for there."""
    if instruction.operation in _MOVES and instruction.frame is None:
        return operands[:1]
    return ()


def listed_arrays(message: str) -> list[Buffer]:
    """The arrays that a message lists under "Largest program allocations", or the one that it is about."""
    allocation = ALLOCATION.search(message)
    if allocation is not None:
        nbytes, _, shape, _, tag = allocation.groups(default="")
        return [Buffer(_shape(tag, shape), int(nbytes), _purpose(tag) or "allocation", 1)]
    # Between two entries are the fields of the first.
    entries = list(_ENTRY.finditer(message))
    ends = [entry.start() for entry in entries[1:]] + [len(message)]
    return _count_equal(
        _read_entry(entry, message[entry.end() : end]) for entry, end in zip(entries, ends, strict=False)
    )


def _read_entry(entry: re.Match[str], text: str) -> Buffer:
    fields = dict(_FIELD.findall(text))
    tag = fields.get("Tag", "")
    operation = _purpose(tag) or search_group(_OPCODE, fields.get("XLA label", ""))
    shape = _shape(tag, fields.get("Shape", "").partition("{")[0])
    return Buffer(shape, parse_size(entry[1], entry[2]), operation, 1, _listed_source(fields))


def _listed_source(fields: dict[str, str]) -> Source | None:
    operator = _OPERATOR_SOURCE.search(fields.get("Operator", ""))
    line = operator or _SOURCE.match(fields.get("Source", ""))
    return Source(line[1], int(line[2] or 0), "") if line else None


def _purpose(tag: str) -> str:
    """What an allocation in a kernel is for: "input window", "scratch operand"."""
    window = _WINDOW.search(tag)
    return f"{window[1]} window" if window else tag.partition(".")[0]


def _shape(tag: str, shape: str) -> str:
    """The array's shape, also if the compiler gives its bytes as the shape."""
    window = _WINDOW.search(tag)
    return window[2] if window else shape


def _count_equal(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Equal buffers, each of count 1, as one with their number."""
    return [
        dataclasses.replace(buffer, count=count) for buffer, count in collections.Counter(buffers).items()
    ]
