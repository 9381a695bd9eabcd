"""What a compiled program's text tells: the arrays it makes, and what its devices send each other."""

import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

COLLECTIVES: Final = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip
_COMPUTATION: Final = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (.*)$")
_OPERATION: Final = re.compile(r"\s*([\w-]+)\(")
_ARRAY: Final = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_BITS: Final = re.compile(r"[a-z]+(\d+)")
# They name arrays that something else has made, or will make.
_NO_ARRAY: Final = {
    "parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "optimization-barrier",
}  # fmt: skip


class Array(NamedTuple):
    """A shape with its dtype, as HLO writes them: "bf16", (8, 128)."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes without the padding of tiles."""
        bits = _BITS.match(self.dtype)
        return math.ceil(math.prod(self.dims) * (int(bits[1]) if bits else 8) / 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


class Instruction(NamedTuple):
    """One line of a program.

    Attributes:
        operation: its opcode, such as "fusion".
        arrays: of its result, several for a tuple.
        line: all of it.
        is_fused: whether it stands inside a fusion, where nothing is kept in memory but the end.
    """

    operation: str
    arrays: tuple[Array, ...]
    line: str
    is_fused: bool


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a program, in its order."""
    fused = set(re.findall(r" fusion\(.*?calls=%?([\w.-]+)", text))
    inside = False
    for line in text.splitlines():
        if computation := _COMPUTATION.match(line):
            inside = computation[1] in fused
        elif found := _INSTRUCTION.match(line):
            result, rest = _result(found[1])
            if operation := _OPERATION.match(rest):
                yield Instruction(operation[1], arrays(result), line, inside)


def arrays(text: str) -> tuple[Array, ...]:
    """Every shape that stands in a piece of a program."""
    found = _ARRAY.findall(text)
    return tuple(Array(dtype, tuple(map(int, filter(None, dims.split(","))))) for dtype, dims in found)


def _result(text: str) -> tuple[str, str]:
    """(the result's type, the rest); the type of a tuple is in parentheses, and so are tiles in it."""
    if not text.startswith("("):
        result, _, rest = text.partition(" ")
        return result, rest
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: place + 1], text[place + 1 :]
    return text, ""


def collectives(program: list[Instruction]) -> dict[str, list[int]]:
    """Bytes that each collective leaves on one device, by kind; those of one in a loop's body once.

    A collective that combines several arrays is one. Of one that starts here and ends elsewhere, the end counts.
    """
    found: dict[str, list[int]] = {}
    for instruction in program:
        kind = instruction.operation.removesuffix("-start")
        if kind in COLLECTIVES:
            made = instruction.arrays
            if instruction.operation.endswith("-start"):
                made = _results(kind, made)
            found.setdefault(kind, []).append(sum(array.nbytes for array in made))
    return found


def _results(kind: str, made: tuple[Array, ...]) -> tuple[Array, ...]:
    """The results among what a start returns: operands, then results, then, for a permutation, its state."""
    if kind == "all-reduce":
        return made
    made = tuple(array for array in made if array.dims or array.dtype not in ("u32", "s32"))
    return made[len(made) // 2 :]


def largest(program: list[Instruction], count: int) -> list[tuple[Array, str, int]]:
    """The largest arrays that are kept in memory: (shape, opcode, how many instructions make one), largest first."""
    made: dict[tuple[Array, str], int] = {}
    for instruction in program:
        if (
            instruction.is_fused
            or instruction.operation in _NO_ARRAY
            or instruction.operation.endswith("-done")
        ):
            continue
        for array in set(instruction.arrays):
            key = array, instruction.operation
            made[key] = made.get(key, 0) + 1
    ranked = sorted(made.items(), key=lambda item: -item[0][0].nbytes)
    return [(array, operation, times) for (array, operation), times in ranked[:count]]


def square(program: list[Instruction], least: int) -> list[Array]:
    """Arrays with two dimensions of at least `least`, in fusions too: what a matrix of attention's scores would be."""
    found = {array for instruction in program for array in instruction.arrays}
    return sorted(array for array in found if sum(size >= least for size in array.dims) > 1)
