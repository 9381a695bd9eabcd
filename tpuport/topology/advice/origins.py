"""What an instruction of a compiled program is computed from: weights alone, or something that a call brings."""

import re
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.hlo import Instruction

_INDEX: Final = re.compile(r"index=(\d+)")
_QUOTED: Final = re.compile(r"\['(.+?)'\]")


def argument_name(instruction: Instruction) -> str:
    """Which of its arguments a program's parameter is, "weights['up.weight']"; empty where the text is silent."""
    return instruction.op_name.replace("\\'", "'")


class Origins:
    """Answers for one program; loops are followed from their bodies to what they are given."""

    def __init__(self, evidence: Evidence) -> None:
        self._program, self._weights = evidence.program, evidence.weights
        found = evidence.instructions
        self._loops = {name: one for one in found for name in one.calls.get("body", ())}
        self._known: dict[tuple[str, str], frozenset[str] | None] = {}

    def weights(self, instruction: Instruction) -> frozenset[str]:
        """Names of the weights that its operands are computed from; none where anything else has a part in them."""
        parts = [self._of(one) for one in self._operands(instruction)]
        return _union(parts) or frozenset()

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        return self._program.operands(instruction) if self._program else []

    def _of(self, instruction: Instruction) -> frozenset[str] | None:
        """As `weights`, of one result; None for something else. A constant is computed from nothing: an empty set."""
        pending = [instruction]
        while pending:  # no recursion: a chain is as long as the program
            here = pending[-1]
            place = here.computation, here.name
            needs = self._needs(here)
            missing = [one for one in needs or () if (one.computation, one.name) not in self._known]
            if place in self._known or not missing:
                pending.pop()
                self._known.setdefault(place, self._found(here, needs))
            elif any(one in pending for one in missing):
                pending.pop()
                self._known[place] = None  # a loop's own result
            else:
                pending += missing
        return self._known[instruction.computation, instruction.name]

    def _found(self, one: Instruction, needs: list[Instruction] | None) -> frozenset[str] | None:
        """Of an instruction whose needs are known."""
        if one.operation in ("constant", "iota") or _is_number(one):
            return frozenset()
        if one.operation == "parameter":
            names = [name for name in _QUOTED.findall(argument_name(one)) if name in self._weights]
            return frozenset(names[:1]) or None
        return _union([self._known[need.computation, need.name] for need in needs]) if needs else None

    def _needs(self, one: Instruction) -> list[Instruction] | None:
        """The instructions whose results it is made of; None where they cannot be told."""
        if _is_number(one):
            return []
        if one.operation == "get-tuple-element":
            return self._element(one)
        return self._operands(one)

    def _element(self, one: Instruction) -> list[Instruction] | None:
        """An element of a tuple: in a loop's body, what the loop was given, if the body hands it on unchanged."""
        index, owners = _number(one), self._operands(one)
        if index is None or not owners:
            return None
        owner = owners[0]
        loop = self._loops.get(one.computation) if owner.operation == "parameter" else None
        if loop is not None:
            if not self._is_handed_on(one.computation, index):
                return None
            owner = next(iter(self._operands(loop)), owner)
        parts = self._operands(owner)
        if owner.operation == "tuple":
            return [parts[index]] if index < len(parts) else None
        return [owner] if loop is None and owner.operation not in ("while", "parameter") else None

    def _is_handed_on(self, computation: str, index: int) -> bool:
        body = self._program.computations.get(computation) if self._program else None
        parts = self._operands(body.root) if body is not None else []
        if body is None or body.root.operation != "tuple" or index >= len(parts):
            return False
        return parts[index].operation == "get-tuple-element" and _number(parts[index]) == index


def _is_number(instruction: Instruction) -> bool:
    """Whether it is a single number, such as a loop's counter: where in a weight to look, and nothing of its own."""
    return not any(array.dims for array in instruction.results)


def _number(instruction: Instruction) -> int | None:
    found = _INDEX.search(instruction.attributes)
    return int(found[1]) if found else None


def _union(parts: list[frozenset[str] | None]) -> frozenset[str] | None:
    return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
