"""What an instruction of a compiled program is computed from: weights alone, or something that a call brings."""

import re
from typing import Any, Final

from tpuport.topology.advice.evidence import Evidence

_INDEX: Final = re.compile(r"index=(\d+)")
_BODY: Final = re.compile(r"body=%?([\w.-]+)")
_QUOTED: Final = re.compile(r"\[\\?'(.+?)\\?'\]")
_PARAMETER: Final = re.compile(r" parameter\((\d+)\)")


class Origins:
    """Answers for one program; loops are followed from their bodies to what they are given."""

    def __init__(self, evidence: Evidence) -> None:
        self._weights = evidence.weights
        self._by_place: dict[tuple[str, str], Any] = {}
        self._loops: dict[str, Any] = {}
        self._roots: dict[str, Any] = {}
        for one in evidence.instructions:
            self._by_place[one.computation, one.name] = one
            if one.operation == "while" and (body := _BODY.search(one.line)):
                self._loops[body[1]] = one
            if one.line.lstrip().startswith("ROOT "):
                self._roots[one.computation] = one
        self._known: dict[tuple[str, str], frozenset[str] | None] = {}

    def weights(self, instruction: Any) -> frozenset[str] | None:
        """Names of the weights that it is computed from; None where anything else has a part in it."""
        found: set[str] = set()
        for operand in instruction.operands:
            part = self._of(instruction.computation, operand)
            if part is None:
                return None
            found |= part
        return frozenset(found) or None

    def _of(self, computation: str, name: str) -> frozenset[str] | None:
        """As `weights`, of one value; a constant is computed from nothing, and is an empty set."""
        place, pending = (computation, name), [(computation, name)]
        while pending:  # no recursion: a chain is as long as the program
            here = pending[-1]
            if here in self._known:
                pending.pop()
                continue
            needs = self._needs(here)
            if isinstance(needs, frozenset) or needs is None:
                self._known[here] = needs
                continue
            missing = [one for one in needs if one not in self._known]
            if set(missing) & set(pending):
                self._known[here] = None  # a value that its own loop changes
            elif missing:
                pending += missing
            else:
                self._known[here] = _union([self._known[one] for one in needs])
        return self._known[place]

    def _needs(self, place: tuple[str, str]) -> list[tuple[str, str]] | frozenset[str] | None:
        """Where a value comes from: other values, weights, or (None) something else."""
        one = self._by_place.get(place)
        if one is None:
            return None
        if one.operation == "parameter":
            return self._argument(one)
        if one.operation in ("constant", "iota"):
            return frozenset()
        if one.operation == "get-tuple-element":
            return self._element(one)
        return [(one.computation, operand) for operand in one.operands] or None

    def _argument(self, one: Any) -> frozenset[str] | None:
        names = [name for name in _QUOTED.findall(str(one.op_name or "")) if name in self._weights]
        return frozenset(names[:1]) if names and _PARAMETER.search(one.line) else None

    def _element(self, one: Any) -> list[tuple[str, str]] | None:
        """An element of a tuple: in a loop's body, what the loop was given, if the body hands it on unchanged."""
        owner, index = self._by_place.get((one.computation, one.operands[0])), _INDEX.search(one.line)
        if owner is None or index is None:
            return None
        if owner.operation == "tuple":
            return [(owner.computation, owner.operands[int(index[1])])]
        loop = self._loops.get(one.computation) if owner.operation == "parameter" else None
        if loop is None or not self._is_handed_on(one.computation, int(index[1])):
            return None
        given = self._by_place.get((loop.computation, loop.operands[0]))
        if given is None or given.operation != "tuple":
            return None
        return [(given.computation, given.operands[int(index[1])])]

    def _is_handed_on(self, computation: str, index: int) -> bool:
        root = self._roots.get(computation)
        if root is None or root.operation != "tuple" or index >= len(root.operands):
            return False
        back = self._by_place.get((computation, root.operands[index]))
        found = _INDEX.search(back.line) if back is not None else None
        return (
            back is not None and back.operation == "get-tuple-element"
            and found is not None and int(found[1]) == index
        )  # fmt: skip


def argument_name(instruction: Any) -> str | None:
    """The name of the program's argument that a parameter is; None for anything else, and inside computations."""
    named = str(instruction.op_name or "").replace("\\'", "'")
    is_argument = instruction.operation == "parameter" and _PARAMETER.search(instruction.line)
    return named if is_argument and named and "/" not in named.partition("[")[0] else None


def _union(parts: list[frozenset[str] | None]) -> frozenset[str] | None:
    return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
