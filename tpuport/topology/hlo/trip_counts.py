"""How often a step executes each instruction: loops that count to a constant, and loops
in their bodies.
"""

import collections
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo.array_types import search_group
from tpuport.topology.hlo.instructions import Computation, Instruction
from tpuport.topology.hlo.value_flow import Value, ValueFlow

_KNOWN_TRIP_COUNT: Final = re.compile(r'known_trip_count"?:? ?=?\{"n":"(\d+)"')
_INTEGER: Final = re.compile(r"constant\((?:\{ ?)*(-?\d+)")
_DIRECTION: Final = re.compile(r"\bdirection=(\w+)")
_SAME_NUMBER: Final = {"bitcast", "copy", "convert", "copy-start", "reshape"}
_SWAPPED: Final = {
    "LT": "GT",
    "GT": "LT",
    "LE": "GE",
    "GE": "LE",
    "NE": "NE",
    "EQ": "EQ",
}
# The computations that these name are part of the instruction: they run for each
# element.
_ELEMENT_WISE_CALLERS: Final = {
    "reduce", "reduce-window", "sort", "map", "scatter", "select-and-scatter", "all-reduce", "reduce-scatter",
    "all-reduce-start", "custom-call", "topk",
}  # fmt: skip


class _Linear(NamedTuple):
    """An integer: an element that a loop carries plus `offset`, or `offset` alone.

    `carried` is that element, of the parameter of the loop's body or condition.
    """

    carried: Value | None
    offset: int


class _Comparison(NamedTuple):
    """What the condition of a loop compares, with the number that changes on the
    left.
    """

    left: _Linear
    direction: str
    right: _Linear


def set_execution_counts(computations: dict[str, Computation], entry: str) -> None:
    """Set `rounds`, `times` and `is_fused` of every instruction."""
    loops = _LoopReader(computations)
    executions = collections.Counter({entry: 1})
    fused: set[str] = set()
    # Callers come after what they call, so that the last computation is the first whose
    # count is known.
    for name, computation in reversed(computations.items()):
        for instruction in computation.instructions:
            # What is never called is counted once, so that no cost is lost.
            instruction.times = max(executions[name], 1)
            instruction.is_fused = name in fused
            if instruction.operation == "while":
                instruction.rounds = loops.count_rounds(instruction)
            if instruction.is_fused or _fuses(instruction):
                fused.update(instruction.callees)
            for callee in instruction.callees:
                executions[callee] += instruction.times * instruction.rounds


def _fuses(instruction: Instruction) -> bool:
    """Whether what it calls becomes part of it. What runs asynchronously has results of
    its own.
    """
    if instruction.operation in _ELEMENT_WISE_CALLERS:
        return True
    return "calls" in instruction.calls and not instruction.operation.startswith(
        "async"
    )


class _UnknownNumber(Exception):
    """The text does not tell a number."""


class _LoopReader:
    """Reads off the text how often loops run.

    Its private methods raise `_UnknownNumber` where a number depends on data, or is
    computed in a way they do not read.
    """

    def __init__(self, computations: Mapping[str, Computation]) -> None:
        self._computations = computations
        self._flow = ValueFlow(computations, _same_number)

    def count_rounds(self, loop: Instruction) -> int:
        """How often a loop's body runs; 1 if the text does not tell, or if it never
        runs.
        """
        known = _KNOWN_TRIP_COUNT.search(loop.attributes)
        if known is not None:
            return max(1, int(known[1]))
        try:
            return max(1, self._derive_rounds(loop))
        except _UnknownNumber:
            return 1

    def _derive_rounds(self, loop: Instruction) -> int:
        """How often a loop runs that counts from a constant to a constant."""
        comparison = self._comparison(loop)
        counter = comparison.left
        step = self._step(loop, counter)
        first = self._initial(loop, counter) + counter.offset
        limit = self._constant(loop, comparison.right)
        return _count_steps(first, limit, step, comparison.direction)

    def _callee(self, loop: Instruction, attribute: str) -> Computation:
        [name] = loop.calls[attribute]
        return self._computations[name]

    def _comparison(self, loop: Instruction) -> _Comparison:
        condition = self._callee(loop, "condition")
        compare = self._flow.origin(Value(condition.root)).instruction
        if compare.operation != "compare":
            raise _UnknownNumber
        direction = search_group(_DIRECTION, compare.attributes)
        left, right = self._linear_operands(compare)
        # "10 > i" is "i < 10".
        if left.carried is None:
            return _Comparison(right, _SWAPPED[direction], left)
        return _Comparison(left, direction, right)

    def _linear_operands(self, instruction: Instruction) -> list[_Linear]:
        operands = self._computations[instruction.computation].operands(instruction)
        return [self._linear(Value(operand)) for operand in operands]

    def _linear(self, value: Value) -> _Linear:
        instruction, path = origin = self._flow.origin(value)
        number = _INTEGER.search(instruction.attributes)
        match instruction.operation:
            case "constant" if number is not None:
                return _Linear(None, int(number[1]))
            case "parameter" if len(path) == 1:
                return _Linear(origin, 0)
            case "add":
                return _add(*self._linear_operands(instruction))
            case "subtract":
                return _subtract(*self._linear_operands(instruction))
        raise _UnknownNumber

    def _step(self, loop: Instruction, number: _Linear) -> int:
        """What a round adds to the element that the loop carries."""
        if number.carried is None:
            raise _UnknownNumber  # neither side of the condition changes
        body = self._callee(loop, "body")
        path = number.carried.path
        result = self._linear(Value(body.root, path))
        # A counter that takes its next value from another element is none.
        if result.carried != Value(body.parameters[0], path):
            raise _UnknownNumber
        return result.offset

    def _initial(self, loop: Instruction, number: _Linear) -> int:
        """The value of the carried element before the first round."""
        assert number.carried is not None
        [start] = self._computations[loop.computation].operands(loop)
        value = self._linear(Value(start, number.carried.path))
        if value.carried is None:
            return value.offset
        # The loop is in the body of another, and starts with what that one carries: a
        # constant if it stays the same.
        outer = self._flow.enclosing_loop(value.carried.instruction)
        if outer is None:
            raise _UnknownNumber
        return self._constant(outer, value)

    def _constant(self, loop: Instruction, number: _Linear) -> int:
        """The value of a number that no round of this loop changes."""
        if number.carried is None:
            return number.offset
        if self._step(loop, number) != 0:
            raise _UnknownNumber
        return self._initial(loop, number) + number.offset


def _same_number(
    instruction: Instruction, operands: Sequence[Instruction]
) -> Sequence[Instruction]:
    if instruction.operation in _SAME_NUMBER:
        return operands[:1]
    return ()


def _add(left: _Linear, right: _Linear) -> _Linear:
    if left.carried is not None and right.carried is not None:
        raise _UnknownNumber
    return _Linear(left.carried or right.carried, left.offset + right.offset)


def _subtract(left: _Linear, right: _Linear) -> _Linear:
    # A carried element that is subtracted counts in the other direction, which no loop
    # of jax does.
    if right.carried is not None:
        raise _UnknownNumber
    return left._replace(offset=left.offset - right.offset)


def _count_steps(first: int, limit: int, step: int, direction: str) -> int:
    """How many steps lead from `first` to where the comparison with `limit` fails."""
    # Counters are integers: "at most" is "less than the next".
    match direction:
        case "LE":
            limit, direction = limit + 1, "LT"
        case "GE":
            limit, direction = limit - 1, "GT"
    # A loop that goes away from its limit, or as long as two numbers are equal, may
    # never end.
    if not {"LT": step > 0, "GT": step < 0, "NE": step != 0, "EQ": False}[direction]:
        raise _UnknownNumber
    return math.ceil((limit - first) / step)
