"""Instructions that only put the elements of an array elsewhere, among them those at
the border of a loop's rounds.
"""

from typing import Final

from tpuport.topology.hlo import Array, Instruction, Program
from tpuport.topology.timing import Span

_REORDERING: Final = {"copy", "transpose", "reshape"}
_LEAST_ELEMENTS: Final = 1 << 16


def reordered_array(span: Span) -> Array | None:
    """The result of an instruction that puts all elements elsewhere, and computes
    nothing.
    """
    if span.instruction.operation not in _REORDERING:
        return None
    [array, *_] = span.instruction.results
    return array if array.size >= _LEAST_ELEMENTS else None


def is_at_border_of_loop(program: Program, copy: Instruction) -> bool:
    """Whether an instruction copies what a round of its loop is handed, or makes the
    copy that it hands on.
    """
    # Others may have no operands.
    if copy.operation not in _REORDERING or copy.computation not in program.loop_bodies:
        return False
    return _is_handed(program, copy) or _is_handed_on(program, copy)


def _is_handed(program: Program, copy: Instruction) -> bool:
    [source, *_] = program.operands(copy)
    while source.operation == "bitcast":
        [source] = program.operands(source)
    if source.operation != "get-tuple-element":
        return False
    [origin] = program.operands(source)
    return origin.operation == "parameter"


def _is_handed_on(program: Program, copy: Instruction) -> bool:
    waiting = [copy]
    while waiting:
        for user in program.users(waiting.pop()):
            if user.is_root and user.operation == "tuple":
                return True
            if user.operation == "bitcast":
                waiting.append(user)
    return False
