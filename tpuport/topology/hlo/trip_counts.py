"""How often a step executes each instruction: loops that count to a constant, and loops in their bodies."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo.instructions import Computation, Instruction
from tpuport.topology.hlo.value_flow import Value, ValueFlow

_KNOWN_TRIP_COUNT: Final = re.compile(r'known_trip_count"?:? ?=?\{"n":"(\d+)"')
_INTEGER: Final = re.compile(r"constant\((?:\{ ?)*(-?\d+)")
_DIRECTION: Final = re.compile(r"\bdirection=(\w+)")
_SAME_NUMBER: Final = {"bitcast", "copy", "convert", "copy-start", "reshape"}
_SWAPPED: Final = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
# The computations that these name are part of the instruction: they run for each element.
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

    @property
    def element(self) -> int | None:
        return None if self.carried is None else self.carried.path[0]


class _Comparison(NamedTuple):
    """What the condition of a loop compares, with the number that changes on the left."""

    left: _Linear
    direction: str
    right: _Linear


def set_execution_counts(computations: dict[str, Computation], entry: str) -> None:
    """Set `rounds`, `times` and `is_fused` of every instruction."""
    loops = _LoopReader(computations)
    executions = dict.fromkeys(computations, 0)
    executions[entry] = 1
    fused: set[str] = set()
    # Callers come after what they call, so that the last computation is the first whose count is known.
    for name, computation in reversed(computations.items()):
        for instruction in computation.instructions:
            # What is never called is counted once, so that no cost is lost.
            instruction.times = max(executions[name], 1)
            instruction.is_fused = name in fused
            if instruction.operation == "while":
                instruction.rounds = loops.count_rounds(instruction) or 1
            for attribute, callees in instruction.calls.items():
                if instruction.is_fused or _fuses(instruction, attribute):
                    fused.update(callees)
                for callee in callees:
                    executions[callee] = executions.get(callee, 0) + instruction.times * instruction.rounds


def _fuses(instruction: Instruction, attribute: str) -> bool:
    """Whether what it calls becomes part of it. What runs asynchronously has results of its own."""
    if instruction.operation in _ELEMENT_WISE_CALLERS:
        return True
    return attribute == "calls" and not instruction.operation.startswith("async")


class _LoopReader:
    """Reads off the text how often loops run."""

    def __init__(self, computations: Mapping[str, Computation]) -> None:
        self._computations = computations
        self._flow = ValueFlow(computations, _same_number)

    def count_rounds(self, loop: Instruction) -> int | None:
        """How often a loop's body runs; None if the text does not tell."""
        known = _KNOWN_TRIP_COUNT.search(loop.attributes)
        if known is not None:
            return int(known[1])
        comparison = self._comparison(loop)
        if comparison is None or comparison.left.element is None:
            return None
        step = self._step(loop, comparison.left.element)
        first = self._initial(loop, comparison.left.element)
        limit = self._constant(loop, comparison.right)
        if step is None or first is None or limit is None:
            return None
        return _count_steps(first + comparison.left.offset, limit, step, comparison.direction)

    def _callee(self, loop: Instruction, attribute: str) -> Computation | None:
        names = loop.calls.get(attribute, ())
        return self._computations.get(names[0]) if names else None

    def _comparison(self, loop: Instruction) -> _Comparison | None:
        condition = self._callee(loop, "condition")
        if condition is None:
            return None
        compare = self._flow.origin(Value(condition.root)).instruction
        direction = _DIRECTION.search(compare.attributes)
        if compare.operation != "compare" or direction is None:
            return None
        operands = self._computations[compare.computation].operands(compare)
        left, right = (self._linear(Value(operand)) for operand in operands)
        if left is None or right is None:
            return None
        # "10 > i" is "i < 10".
        if left.carried is None:
            return _Comparison(right, _SWAPPED[direction[1]], left)
        return _Comparison(left, direction[1], right)

    def _linear(self, value: Value) -> _Linear | None:
        """What is known of a number; None if it is computed in another way than by adding."""
        instruction, path = origin = self._flow.origin(value)
        match instruction.operation:
            case "constant":
                number = _INTEGER.search(instruction.attributes)
                return None if number is None else _Linear(None, int(number[1]))
            case "parameter" if len(path) == 1:
                return _Linear(origin, 0)
            case "add" | "subtract":
                operands = self._computations[instruction.computation].operands(instruction)
                left, right = (self._linear(Value(operand)) for operand in operands)
                return _add(left, right, -1 if instruction.operation == "subtract" else 1)
        return None

    def _step(self, loop: Instruction, element: int) -> int | None:
        """What a round adds to an element that the loop carries."""
        body = self._callee(loop, "body")
        if body is None:
            return None
        value = self._linear(Value(body.root, (element,)))
        carries_itself = value is not None and value.carried == Value(body.parameters[0], (element,))
        return value.offset if value is not None and carries_itself else None

    def _initial(self, loop: Instruction, element: int) -> int | None:
        """The value of an element before the first round."""
        [start] = self._computations[loop.computation].operands(loop)
        value = self._linear(Value(start, (element,)))
        if value is None or value.carried is None:
            return None if value is None else value.offset
        # The loop is in the body of another, and starts with what that one carries: a constant if it stays the same.
        outer = self._flow.enclosing_loop(value.carried.instruction)
        return None if outer is None else self._constant(outer, value)

    def _constant(self, loop: Instruction, value: _Linear) -> int | None:
        """The value of a number that no round of this loop changes."""
        if value.element is None:
            return value.offset
        if self._step(loop, value.element) != 0:
            return None
        first = self._initial(loop, value.element)
        return None if first is None else first + value.offset


def _same_number(instruction: Instruction, operands: Sequence[Instruction]) -> Sequence[Instruction]:
    return operands[:1] if instruction.operation in _SAME_NUMBER else ()


def _add(left: _Linear | None, right: _Linear | None, sign: int) -> _Linear | None:
    if left is None or right is None:
        return None
    if right.carried is None:
        return left._replace(offset=left.offset + sign * right.offset)
    # A carried element that is subtracted counts in the other direction, which no loop of jax does.
    if left.carried is None and sign > 0:
        return right._replace(offset=left.offset + right.offset)
    return None


def _count_steps(first: int, limit: int, step: int, direction: str) -> int | None:
    """How many steps lead from `first` to where the comparison with `limit` fails; None if it may never fail."""
    match direction:
        case "LE":
            limit, direction = limit + 1, "LT"  # of integers
        case "GE":
            limit, direction = limit - 1, "GT"
        case "EQ":
            return None
    approaches = {"LT": step > 0, "GT": step < 0, "NE": step != 0}[direction]
    return max(0, math.ceil((limit - first) / step)) if approaches else None
