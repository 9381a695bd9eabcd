"""Counts the bundles that a kernel executes, by running its scalar unit.

A kernel's loops, and what it does only in some of their rounds, depend on numbers that
the compiler put into the code: counters, bounds, sizes of blocks. The scalar
instructions are executed with what is known of them; addresses, sizes and indices that
only a run has are unknown, and so is whatever is computed from them. A branch that
depends on something unknown is not taken: the code behind it counts, and a loop whose
end is unknown counts once.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Final

from tpuport.hardware.schedules.bundle_listing import (
    Branch,
    Bundle,
    Guard,
    ScalarInstruction,
)

# Bundles after a branch that are executed whether or not it is taken.
_DELAY_SLOTS: Final = 4
# A kernel that branches more often runs for seconds, or has a loop that this reading of
# its listing does not end.
_MOST_BRANCHES: Final = 2_000_000
_WORD: Final = 1 << 32

Number = int | None


@dataclasses.dataclass(frozen=True)
class Execution:
    """What a kernel executes.

    Attributes:
        cycles: bundles, one a cycle.
        copies: that it starts between memories.
        exact: False if a branch depended on what only a run knows, or the kernel runs
            too long to be followed.
    """

    cycles: int
    copies: int
    exact: bool


def execute(bundles: Sequence[Bundle]) -> Execution:
    """Execute a kernel once."""
    return _ScalarCore(bundles).run()


class _ScalarCore:
    """Executes blocks of bundles: straight lines of code that end where a branch takes
    effect.
    """

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self._bundles = bundles
        self._starts = {
            region: index
            for index, bundle in enumerate(bundles)
            for region in bundle.regions
        }
        self._copies = 0
        self._values: dict[str, Number] = {}
        # What a register holds, which is how a loop hands a value to its next round.
        self._registers: dict[str, Number] = {}
        relevant = _relevant_results(bundles)
        self._instructions = [
            tuple(
                instruction
                for instruction in bundle.instructions
                if instruction.result in relevant
            )
            for bundle in bundles
        ]
        # From each bundle on, the next one that has anything to execute.
        self._next_active = [len(bundles)] * (len(bundles) + 1)
        for index in reversed(range(len(bundles))):
            bundle = bundles[index]
            active = (
                self._instructions[index] or bundle.copies or bundle.branch is not None
            )
            self._next_active[index] = index if active else self._next_active[index + 1]

    def run(self) -> Execution:
        index, cycles, branches, exact = 0, 0, 0, True
        end = len(self._bundles)
        while index < end:
            active = self._next_active[index]
            cycles += active - index
            index = active
            if index == end:
                break
            branch = self._bundles[index].branch
            # Before the bundle's instructions write, since all of a bundle read first.
            is_taken = branch is not None and self._is_taken(branch)
            self._execute(index)
            index += 1
            cycles += 1
            if branch is None:
                continue
            branches += 1
            if branches > _MOST_BRANCHES:
                return Execution(cycles, self._copies, exact=False)
            if is_taken is None:
                exact = False
            target = self._starts.get(branch.region)
            if not is_taken or target is None:
                continue
            for slot in range(index, min(index + _DELAY_SLOTS, end)):
                self._execute(slot)
                cycles += 1
            index = target
        return Execution(cycles, self._copies, exact)

    def _is_taken(self, branch: Branch) -> bool | None:
        """None if it is unknown."""
        if branch.guard is None:
            return True
        return self._holds(branch.guard)

    def _holds(self, guard: Guard) -> bool | None:
        value = self._values.get(guard.predicate)
        if value is None:
            return None
        return bool(value) != guard.negated

    def _execute(self, index: int) -> None:
        """Execute the scalar instructions of a bundle, which all read before any of
        them writes.
        """
        for guard in self._bundles[index].copies:
            if guard is None or self._holds(guard) is not False:
                self._copies += 1
        computing = []
        for instruction in self._instructions[index]:
            if instruction.operation == "sphi":
                # Nothing is done: the value is already in the register, from before the
                # loop or from its last round.
                self._values[instruction.result] = self._registers.get(
                    instruction.register
                )
            else:
                computing.append(instruction)
        results = list(map(self._compute, computing))
        for instruction, value in zip(computing, results, strict=True):
            self._values[instruction.result] = value
            if instruction.register:
                self._registers[instruction.register] = value

    def _compute(self, instruction: ScalarInstruction) -> Number:
        if instruction.guard is not None:
            holds = self._holds(instruction.guard)
            if holds is None:
                return None
            if not holds:
                return self._read(instruction.otherwise)
        compute = _OPERATIONS.get(instruction.operation)
        if compute is None:
            return None
        return compute(
            instruction.variant,
            list(map(self._read, instruction.operands)),
        )

    def _read(self, operand: str) -> Number:
        if operand in self._values:
            return self._values[operand]
        try:
            return _signed(int(operand, 0))
        except ValueError:
            return None


def _relevant_results(bundles: Sequence[Bundle]) -> set[str]:
    """The values on which a branch or a copy depends, directly or not."""
    definitions: dict[str, list[ScalarInstruction]] = {}
    for bundle in bundles:
        for instruction in bundle.instructions:
            definitions.setdefault(instruction.result, []).append(instruction)
    guards = [bundle.branch.guard for bundle in bundles if bundle.branch is not None]
    guards += [guard for bundle in bundles for guard in bundle.copies]
    waiting = [guard.predicate for guard in guards if guard is not None]
    relevant: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in relevant:
            continue
        relevant.add(name)
        for instruction in definitions.get(name, ()):
            waiting.extend(instruction.operands)
            waiting.append(instruction.otherwise)
            if instruction.guard is not None:
                waiting.append(instruction.guard.predicate)
    return relevant


def _signed(number: int) -> int:
    """A number as the 32 bits of a register, with a sign."""
    number %= _WORD
    return number - _WORD if number >= _WORD // 2 else number


def _arithmetic(
    function: Callable[[int, int], int],
) -> Callable[[str, Sequence[Number]], Number]:
    def apply(variant: str, operands: Sequence[Number]) -> Number:
        known = [operand for operand in operands if operand is not None]
        if len(known) != 2 or len(operands) != 2:
            return None
        return _signed(function(*known))

    return apply


def _and(variant: str, operands: Sequence[Number]) -> Number:
    # Of registers all bits are needed; zero is zero whatever the other one is.
    if 0 in operands:
        return 0
    return _arithmetic(operator.and_)(variant, operands)


def _copy(variant: str, operands: Sequence[Number]) -> Number:
    return operands[0] if operands else None


def _select(variant: str, operands: Sequence[Number]) -> Number:
    condition, on_true, on_false = operands
    if condition is None:
        return on_true if on_true == on_false else None
    return on_true if condition else on_false


def _compare(variant: str, operands: Sequence[Number]) -> Number:
    left, right = operands
    if left is None or right is None:
        return None
    _, relation, kind, *_ = variant.split(".")
    if kind.startswith("u"):
        left, right = left % _WORD, right % _WORD
    return int(_RELATIONS[relation](left, right))


def _predicate_or(variant: str, operands: Sequence[Number]) -> Number:
    if any(operands):
        return 1
    return None if None in operands else 0


def _predicate_and(variant: str, operands: Sequence[Number]) -> Number:
    if 0 in operands:
        return 0
    return None if None in operands else 1


def _negate(value: Number) -> Number:
    return None if value is None else int(not value)


def _shift_right(left: int, right: int) -> int:
    return (left % _WORD) >> (right % 32)


_RELATIONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
# The results of operations, whose variant matters to comparisons alone.
_OPERATIONS: Final[dict[str, Callable[[str, Sequence[Number]], Number]]] = {
    "sadd": _arithmetic(operator.add),
    "ssub": _arithmetic(operator.sub),
    "smul": _arithmetic(operator.mul),
    "sshll": _arithmetic(lambda left, right: left << (right % 32)),
    "sshrl": _arithmetic(_shift_right),
    "sshra": _arithmetic(lambda left, right: left >> (right % 32)),
    "sand": _and,
    "sor": _arithmetic(operator.or_),
    "sxor": _arithmetic(operator.xor),
    "smin": _arithmetic(min),
    "smax": _arithmetic(max),
    "smov": _copy,
    "sld": _copy,
    "sst": _copy,
    "scalar_select": _select,
    "scmp": _compare,
    "pnand": lambda variant, operands: _negate(_predicate_and(variant, operands)),
    "pand": _predicate_and,
    "por": _predicate_or,
    "pnor": lambda variant, operands: _negate(_predicate_or(variant, operands)),
    "pneg": lambda variant, operands: _negate(operands[0]),
    "pmov": _copy,
}
