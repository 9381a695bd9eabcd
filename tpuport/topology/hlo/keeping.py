"""The arrays that a program keeps in HBM beside its arguments and results."""

import re
from typing import Final

from tpuport.topology.compile_report import Buffer, Source
from tpuport.topology.hlo.program import Instruction, Program
from tpuport.topology.hlo.array_types import HBM, Array
from tpuport.topology.hlo.traffic import FREE, ends, is_view, puts

_INDEX: Final = re.compile(r"\bindex=(\d+)")


def list_buffers(program: Program, count: int) -> tuple[Buffer, ...]:
    """The largest temporaries in HBM, one entry for all of a shape that one opcode makes for one line of code.

    Arguments, results of the program and what is changed in place are none: they are kept anyway.

    Args:
        program: the compiled one.
        count: how many entries; the largest come first.
    """
    given_back = _results(program)
    found: dict[tuple[Array, str, Source | None], tuple[int, int]] = {}
    for one in program.instructions:
        if one.is_fused or one.operation in FREE or one.operation.endswith(("-done", "-update")):
            continue
        if id(one) in given_back or is_view(one):
            continue
        for array in _made(program, one):
            key = array.bare, one.operation.removesuffix("-start"), program.source(one)
            nbytes, times = found.get(key, (0, 0))
            found[key] = max(nbytes, array.tiled_nbytes), times + 1
    ranked = sorted(
        found.items(), key=lambda item: (-item[1][0], str(item[0][0]), item[0][1], str(item[0][2]))
    )
    return tuple(
        Buffer(str(array), nbytes, operation, times, source)
        for (array, operation, source), (nbytes, times) in ranked[:count]
    )


def _made(program: Program, instruction: Instruction) -> list[Array]:
    """Results in HBM that are no operand changed in place."""
    if instruction.operation == "fusion" and ends(program, instruction):
        return []
    put, results, same = puts(program, instruction), instruction.results, instruction.aliased
    return [
        array
        for place, array in enumerate(results)
        if array.space == HBM and place not in same and (len(put) != len(results) or put[place] is None)
    ]


def _results(program: Program) -> set[int]:
    """The instructions (their ids) that make what the program returns, or what a loop changes into that."""
    entry = program.computations[program.entry]
    found, waiting = set(), [entry.root]
    while waiting:
        one = waiting.pop()
        found.add(id(one))
        waiting += [each for each in _same(program, one) if id(each) not in found]
    return found


def _same(program: Program, one: Instruction) -> list[Instruction]:
    """The operands whose memory an instruction's result lies in."""
    operands = program.operands(one)
    if one.operation in ("tuple", "bitcast") or one.operation.endswith("-done"):
        return operands
    if one.operation == "dynamic-update-slice":
        return operands[:1]
    index = _INDEX.search(one.attributes) if one.operation == "get-tuple-element" else None
    if index is None or not operands or operands[0].operation != "while":
        return operands if index else []
    carried = program.operands(program.operands(operands[0])[0])
    return carried[int(index[1]) : int(index[1]) + 1]
