"""How often a step executes each instruction: loops that count to a constant, and loops in their bodies."""

import math
import re
from typing import Final, NamedTuple

from tpuport.topology.hlo.program import Computation, Instruction, Program

_KNOWN: Final = re.compile(r'known_trip_count"?:? ?=?\{"n":"(\d+)"')
_INTEGER: Final = re.compile(r"constant\((?:\{ ?)*(-?\d+)")
_INDEX: Final = re.compile(r"\bindex=(\d+)")
_DIRECTION: Final = re.compile(r"\bdirection=(\w+)")
_SAME: Final = {"bitcast", "copy", "convert", "copy-done", "copy-start", "reshape"}
_SWAPPED: Final = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_PARTS: Final = {  # an instruction of theirs is a part of the instruction that names them
    "reduce", "reduce-window", "sort", "map", "scatter", "select-and-scatter", "all-reduce", "reduce-scatter",
    "all-reduce-start", "custom-call", "topk",
}  # fmt: skip


class _Value(NamedTuple):
    """A number that a loop's condition reads: element `place` of what the loop carries, plus `added`.

    Without a place it is `added` alone.
    """

    place: int | None
    added: int


def assign(program: Program) -> None:
    """Set `rounds`, `times` and `is_fused` of every instruction."""
    if not program.computations:
        return
    times = dict.fromkeys(program.computations, 0)
    parts: set[str] = set()
    callers: dict[str, Instruction] = {}
    times[program.entry] = 1
    for name, computation in reversed(program.computations.items()):
        is_part = name in parts
        for one in computation.instructions:
            one.times, one.is_fused = max(times[name], 1), is_part
            one.rounds = _trips(program, one, callers) if one.operation == "while" else 1
            for attribute, names in one.calls.items():
                for called in names:
                    times[called] = times.get(called, 0) + one.times * one.rounds
                    callers.setdefault(called, one)
                    if is_part or (attribute == "calls" and _fuses(one)) or one.operation in _PARTS:
                        parts.add(called)


def _fuses(instruction: Instruction) -> bool:
    return not instruction.operation.startswith("async")


def _trips(program: Program, loop: Instruction, callers: dict[str, Instruction]) -> int:
    """How often a loop's body runs; 1 where the text does not tell."""
    if known := _KNOWN.search(loop.attributes):
        return int(known[1])
    condition, body = program.callee(loop, "condition"), program.callee(loop, "body")
    if condition is None or body is None:
        return 1
    return _counted(program, loop, condition, body, callers) or 1


def _counted(
    program: Program,
    loop: Instruction,
    condition: Computation,
    body: Computation,
    callers: dict[str, Instruction],
) -> int | None:
    """Of a loop that compares a number, to which it adds the same each time, with one that stays."""
    found = _compared(program, condition)
    if found is None:
        return None
    left, direction, right = found
    if left.place is None:
        left, direction, right = right, _SWAPPED[direction], left
    if left.place is None:
        return None
    step = _step(program, body, left.place)
    first = _initial(program, loop, left.place, callers)
    limit = _Value(None, right.added)
    if right.place is not None:
        if _step(program, body, right.place) != 0:
            return None
        value = _initial(program, loop, right.place, callers)
        limit = _Value(None, right.added + value) if value is not None else None
    if step is None or first is None or limit is None:
        return None
    return _rounds(first + left.added, limit.added, step, direction)


def _rounds(first: int, limit: int, step: int, direction: str) -> int | None:
    """From `first` in steps until the comparison with `limit` fails."""
    if direction in ("LE", "GE"):
        limit += 1 if direction == "LE" else -1
    if step == 0 or direction == "EQ" or (direction != "NE" and (step > 0) != (direction in ("LT", "LE"))):
        return None
    return max(0, math.ceil((limit - first) / step))


def _compared(program: Program, condition: Computation) -> tuple[_Value, str, _Value] | None:
    """(a value, a direction, a value): what a condition compares."""
    root, outer = condition.root, []
    inside = condition
    while root.operation in ("fusion", *_SAME):
        if root.operation == "fusion":
            called = program.callee(root)
            if called is None:
                return None
            outer.append((inside, root))
            root, inside = called.root, called
        else:
            root = inside.named[root.operands[0]]
    direction = _DIRECTION.search(root.attributes)
    if root.operation != "compare" or direction is None:
        return None
    left, right = (_value(program, inside, name, outer) for name in root.operands[:2])
    return None if left is None or right is None else (left, direction[1], right)


def _value(
    program: Program, computation: Computation, name: str, outer: list[tuple[Computation, Instruction]]
) -> _Value | None:
    """Of an instruction in a loop's condition or body, of which `outer` are the fusions around it."""
    one = computation.named.get(name)
    if one is None:
        return None
    if one.operation in _SAME:
        return _value(program, computation, one.operands[0], outer)
    if one.operation == "constant":
        number = _INTEGER.search(one.attributes)
        return _Value(None, int(number[1])) if number else None
    if one.operation == "get-tuple-element":
        return _element(computation, one)
    if one.operation == "parameter" and outer:
        around, fusion = outer[-1]
        place = next(number for number, parameter in computation.parameters.items() if parameter is one)
        return _value(program, around, fusion.operands[place], outer[:-1])
    if one.operation == "fusion" and (called := program.callee(one)):
        return _value(program, called, called.root.name, [*outer, (computation, one)])
    if one.operation in ("add", "subtract"):
        left, right = (_value(program, computation, operand, outer) for operand in one.operands)
        return _sum(left, right, -1 if one.operation == "subtract" else 1)
    return None


def _element(computation: Computation, one: Instruction) -> _Value | None:
    index = _INDEX.search(one.attributes)
    source = computation.named.get(one.operands[0])
    if index is None or source is None or source.operation != "parameter":
        return None
    return _Value(int(index[1]), 0)


def _sum(left: _Value | None, right: _Value | None, sign: int) -> _Value | None:
    if left is None or right is None:
        return None
    if right.place is None:
        return _Value(left.place, left.added + sign * right.added)
    return _Value(right.place, left.added + right.added) if left.place is None and sign > 0 else None


def _step(program: Program, body: Computation, index: int) -> int | None:
    """What a round adds to an element that the loop carries."""
    root = body.root
    if root.operation != "tuple" or index >= len(root.operands):
        return None
    value = _value(program, body, root.operands[index], [])
    return value.added if value is not None and value.place == index else None


def _initial(program: Program, loop: Instruction, index: int, callers: dict[str, Instruction]) -> int | None:
    """An element's value before the first round."""
    around = program.computations[loop.computation]
    start = around.named.get(loop.operands[0])
    if start is None or start.operation != "tuple" or index >= len(start.operands):
        return None
    value = _value(program, around, start.operands[index], [])
    if value is None:
        return None
    if value.place is None:
        return value.added
    # The loop stands in another's body, and starts from what that one carries without changing it.
    outer = callers.get(loop.computation)
    if outer is None or outer.operation != "while" or _step(program, around, value.place) != 0:
        return None
    before = _initial(program, outer, value.place, callers)
    return None if before is None else before + value.added
