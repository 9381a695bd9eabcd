"""Which line of code makes an array that a loop carries: that in its body, not the loop's own."""

import re
from typing import Final

from tpuport.topology.compile_report import Source
from tpuport.topology.hlo import Instruction, Program

_INDEX: Final = re.compile(r"\bindex=(\d+)")
_HOPS: Final = 12
_MOVING: Final = {"bitcast", "copy", "copy-done", "copy-start", "optimization-barrier"}


def source(program: Program, made: Instruction, place: str) -> Source | None:
    """The line that an element of an instruction's result comes from.

    Args:
        program: as the compiler optimized it.
        made: the instruction.
        place: which element of a tuple; empty for an array.
    """
    one: Instruction | None = made
    for _ in range(_HOPS):
        if one is None or (found := _before(program, one, place)) is None:
            break
        one, place = found
    return program.source(one or made) or program.source(made)


def _before(program: Program, one: Instruction, place: str) -> tuple[Instruction | None, str] | None:
    """The instruction, and the element of its result, that is handed on; None where this one makes it."""
    if one.operation == "get-tuple-element":
        index = _INDEX.search(one.attributes)
        return _operand(program, one, 0), index[1] if index else ""
    if one.operation == "tuple" and place.isdigit():
        return _operand(program, one, int(place)), ""
    if one.operation in _MOVING and one.frame is None:
        return _operand(program, one, 0), place
    if not place.isdigit():
        return None
    loop = one if one.operation == "while" else _around(program, one)
    return _carried(program, loop, place) if loop else None


def _carried(program: Program, loop: Instruction, place: str) -> tuple[Instruction | None, str]:
    """What the body makes of an element; where it leaves it alone, what it begins with."""
    body = program.callee(loop, "body")
    made = _operand(program, body.root, int(place)) if body and body.root.operation == "tuple" else None
    if made is None or _is_given(program, made):
        return _operand(program, loop, 0), place
    return made, ""


def _is_given(program: Program, made: Instruction) -> bool:
    given = _operand(program, made, 0) if made.operation == "get-tuple-element" else None
    return given is not None and given.operation == "parameter"


def _around(program: Program, one: Instruction) -> Instruction | None:
    """The loop whose body or condition has this as its parameter."""
    if one.operation != "parameter":
        return None
    loops = (loop for loop in program.instructions if loop.operation == "while")
    return next((loop for loop in loops if one.computation in sum(loop.calls.values(), ())), None)


def _operand(program: Program, one: Instruction, number: int) -> Instruction | None:
    if number >= len(one.operands):
        return None
    return program.computations[one.computation].named.get(one.operands[number])
