"""What of a compiled program's arrays only moves: from an argument to a collective, and from there into a cache."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tpuport.topology.hlo import Instruction, Program

_QUOTED: Final = re.compile(r"\['(.+?)'\]")
_INDEX: Final = re.compile(r"\bindex=(\d+)")
# The result is the first operand, all of it or a part, in another place, form or dtype.
_FIRST: Final = frozenset(
    "bitcast bitcast-convert convert copy dynamic-slice dynamic-update-slice gather pad reshape reverse scatter slice "
    "transpose".split()
)
_ALL: Final = frozenset(
    "all-gather all-to-all collective-permute concatenate optimization-barrier tuple".split()
)
# The compiler's own, which hand on what they are given.
_HANDING_ON: Final = re.compile(
    r'custom_call_target="(?:ConcatBitcast|AsyncCollectiveStart|AsyncCollectiveDone)"'
)
# A new key is turned (rotary positions) and normed on its way from its projection; sums and products end the way.
_ELEMENTWISE: Final = frozenset(
    "add broadcast clamp cosine divide maximum minimum multiply negate power rsqrt select sine sqrt subtract".split()
)
_WRITING: Final = frozenset(("dynamic-update-slice", "scatter"))


class Moves:
    """Answers for one program; fusions are looked into, and loops are followed from their bodies to what they carry."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._loops = {name: one for one in program.instructions for name in one.calls.get("body", ())}
        self._numbers = {
            (name, one.name): number
            for name, computation in program.computations.items()
            for number, one in computation.parameters.items()
        }

    def from_arguments(self, wanted: Collection[int]) -> set[tuple[str, str]]:
        """The places (computation, name) whose results are these arguments, moved or written into."""
        entry = self._program.computations[self._program.entry]
        found = {self._place(entry.parameters[number]) for number in wanted if number in entry.parameters}
        users = self._users()
        waiting = list(found)
        while waiting:
            fresh = [place for place in users.get(waiting.pop(), ()) if place not in found]
            found.update(fresh)
            waiting += fresh
        return found

    def written_into(self, arrays: set[tuple[str, str]]) -> Iterator[Instruction]:
        """What is written into any of these: the operand that is put there."""
        for one in self._program.instructions:
            operands = self._program.operands(one) if one.operation in _WRITING else []
            place = 1 if one.operation == "dynamic-update-slice" else 2
            if len(operands) > place and self._place(operands[0]) in arrays:
                yield operands[place]

    def way_to(self, ends: Iterable[Instruction]) -> list[Instruction]:
        """The instructions on the way to these from the products that they come from, elementwise work included."""
        found: dict[tuple[str, str], Instruction] = {}
        waiting = list(ends)
        while waiting:
            one = waiting.pop()
            if self._place(one) not in found:
                found[self._place(one)] = one
                waiting += self.sources(one, _ELEMENTWISE)
        return list(found.values())

    def weights_of_products(self, one: Instruction) -> set[str]:
        """Names in quotes of the arguments with which the products are made that an instruction's operands come from.

        A product with one vector may be a sum of an elementwise product.
        """
        found: set[str] = set()
        for end in self.way_to(self._program.operands(one)):
            if end.operation in ("convolution", "dot"):
                found |= self._names(self._program.operands(end), ())
            elif end.operation == "reduce" and not self.sources(end):
                found |= self._names(self._program.operands(end)[:1], _ELEMENTWISE)
        return found

    def _names(self, starts: list[Instruction], others: Collection[str]) -> set[str]:
        """Of the arguments that these are, moved; `others` as for `sources`."""
        found, seen, waiting = set(), set(), list(starts)
        while waiting:
            one = waiting.pop()
            if self._place(one) in seen:
                continue
            seen.add(self._place(one))
            if one.operation == "parameter" and one.computation == self._program.entry:
                found.update(_QUOTED.findall(one.op_name.replace("\\'", "'")))
            waiting += self.sources(one, others)
        return found

    def sources(self, one: Instruction, others: Collection[str] = ()) -> list[Instruction]:
        """The instructions whose results, moved, an instruction's is; `others` are operations that move too."""
        operation = one.operation.removesuffix("-start").removesuffix("-done")
        operands = self._program.operands(one)
        if one.operation == "parameter":
            return self._given(one)
        if one.operation == "get-tuple-element":
            found = _INDEX.search(one.attributes)
            return self._element(operands[0], int(found[1])) if found and operands else []
        if one.operation == "select":
            return operands[1:]
        if operation in ("fusion", "async", "call") and (called := self._program.callee(one)):
            return [called.root]
        if operation in _FIRST or one.operation.endswith("-done"):
            return operands[:1]
        if operation == "reduce":
            return [each for each in operands[:1] if _size(each) == _size(one)]
        is_handed_on = operation == "custom-call" and _HANDING_ON.search(one.attributes)
        return operands if operation in _ALL or operation in others or is_handed_on else []

    def _given(self, parameter: Instruction) -> list[Instruction]:
        """What a parameter of a fusion is given; that of a loop's body is a tuple, whose elements are asked for."""
        caller, number = (
            self._program.callers.get(parameter.computation),
            self._numbers.get(self._place(parameter)),
        )
        operands = self._program.operands(caller) if caller is not None else []
        return [operands[number]] if number is not None and number < len(operands) else []

    def _element(self, owner: Instruction, index: int) -> list[Instruction]:
        """An element of a tuple: of what a loop carries, what it was given and what its body makes of it."""
        loop = self._loops.get(owner.computation) if owner.operation == "parameter" else None
        loop = owner if owner.operation == "while" else loop
        if loop is not None:
            body = self._program.callee(loop, "body")
            owners = [*self._program.operands(loop), *([body.root] if body else [])]
        elif owner.operation == "fusion" and (called := self._program.callee(owner)):
            owners = [called.root]
        else:
            owners = [owner]
        found = []
        for one in owners:
            parts = self._program.operands(one)
            if one.operation in ("tuple", "optimization-barrier"):
                found += parts[index : index + 1]
            elif one.operation != "parameter" and one is not owner:
                found.append(one)
        return found or ([owner] if loop is None and owner.operation != "tuple" else [])

    def _users(self) -> dict[tuple[str, str], list[tuple[str, str]]]:
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for one in self._program.instructions:
            for source in self.sources(one):
                found.setdefault(self._place(source), []).append(self._place(one))
        return found

    @staticmethod
    def _place(one: Instruction) -> tuple[str, str]:
        return one.computation, one.name


def _size(one: Instruction) -> int:
    return sum(array.size for array in one.results)
