"""Where the values of a compiled program come from and where they go.

HLO hides that two values are the same behind tuples and their elements, what loops
carry, the arguments and results of fusions, calls and branches, and operations that
only move or view an array. `ValueFlow` follows a value through all of that. Everything
that asks "what is this array?" of a program's text uses it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo.instructions import Computation, Instruction, all_instructions


class Value(NamedTuple):
    """The result of an instruction, or a part of it.

    Attributes:
        instruction: that has the result.
        path: the indices that lead to an element of nested tuples; empty for the whole
            result.
    """

    instruction: Instruction
    path: tuple[int, ...] = ()


Passes = Callable[[Instruction, Sequence[Instruction]], Iterable[Instruction]]


class _Caller(NamedTuple):
    """What runs a computation.

    Attributes:
        arguments: the operands that are the computation's parameters, in order.
        loop: whose body or condition the computation is, or None.
    """

    arguments: Sequence[Instruction] = ()
    loop: Instruction | None = None


# Of the program itself, and of what is applied to elements: nothing is known of its
# parameters.
_NO_CALLER: Final = _Caller()


class ValueFlow:
    """Follows values backward to their sources, and forward to what they become.

    Tuples are always followed, and so is the end of an asynchronous operation to its
    start.

    Args:
        computations: of the program, by name.
        passes: the operands whose values an instruction's result is, given the
            instruction and its operands: of a bitcast its operand, of a sum none. It is
            asked of every operation that this class does not know itself.
        looks_inside: whether values are followed into and out of fusions, calls,
            branches and loops. Otherwise the result of a loop is what the loop starts
            with, as they share their memory, and a fusion is asked `passes`.
    """

    def __init__(
        self,
        computations: Mapping[str, Computation],
        passes: Passes,
        *,
        looks_inside: bool = True,
    ) -> None:
        self._computations = computations
        self._passes = passes
        self._looks_inside = looks_inside
        self._callers: dict[str, _Caller] = {}
        if looks_inside:
            self._callers = _find_callers(computations)

    def sources(self, value: Value) -> list[Value]:
        """The values, one step back, that this value is.

        An element that a loop carries has two: what the loop starts with, then what a
        round makes of it. The result of a conditional has one for each branch. A value
        that is computed here has none.
        """
        instruction, path = value
        operands = self._operands(instruction)
        match instruction.operation:
            case "parameter":
                return self._arguments(instruction, path)
            case "get-tuple-element":
                return _values(operands, (instruction.tuple_index, *path))
            case "tuple" if path:
                return _values(operands[path[0] : path[0] + 1], path[1:])
            case "tuple":
                return _values(operands)
        roots = self._roots(instruction)
        # The elements of what a loop carries keep their places from round to round.
        if instruction.operation == "while":
            return _values([*operands, *roots], path)
        if roots:
            return _values(roots, path)
        if instruction.operation.endswith("-done"):
            # What a start gives is a tuple with operands and semaphores in it, so that
            # the path says nothing.
            return _values(operands[:1])
        return [
            _same_element(operand, path)
            for operand in self._passes(instruction, operands)
        ]

    def steps_back(self, value: Value) -> Iterator[Value]:
        """A value, and what it is one step back, two steps back, and so on, as long as
        it has one source.
        """
        yield value
        sources = self.sources(value)
        while len(sources) == 1:
            [value] = sources
            yield value
            sources = self.sources(value)

    def origin(self, value: Value) -> Value:
        """Follow a value back as long as it has one source."""
        *_, origin = self.steps_back(value)
        return origin

    def trace(self, values: Iterable[Value]) -> list[Value]:
        """These values and all that they come from."""
        return _reachable(values, self.sources)

    def reach(self, values: Iterable[Value]) -> set[Value]:
        """These values and all that they become, anywhere in the program."""
        results = self._direct_results()
        return set(_reachable(values, lambda value: results.get(value, [])))

    def enclosing_loop(self, parameter: Instruction) -> Instruction | None:
        """The loop that carries a parameter of its body or condition."""
        return self._callers.get(parameter.computation, _NO_CALLER).loop

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        return self._computations[instruction.computation].operands(instruction)

    def _arguments(self, parameter: Instruction, path: tuple[int, ...]) -> list[Value]:
        """What a parameter is given where its computation is called."""
        caller = self._callers.get(parameter.computation, _NO_CALLER)
        number = parameter.parameter_number
        arguments = _values(caller.arguments[number : number + 1], path)
        if caller.loop is not None:
            arguments += _values(self._roots(caller.loop), path)
        return arguments

    def _roots(self, instruction: Instruction) -> list[Instruction]:
        """The roots of the computations whose results are the instruction's."""
        if not self._looks_inside:
            return []
        # A fragment may name computations that it does not have.
        names = instruction.result_computations
        return [
            self._computations[name].root
            for name in names
            if name in self._computations
        ]

    def _direct_results(self) -> dict[Value, list[Value]]:
        """The inverse of `sources`, over all values of the program and the elements
        that any of them takes.
        """
        results: dict[Value, list[Value]] = {}
        for value in self.trace(_values(all_instructions(self._computations))):
            for source in self.sources(value):
                results.setdefault(source, []).append(value)
        return results


def _values(
    instructions: Iterable[Instruction], path: tuple[int, ...] = ()
) -> list[Value]:
    """The same part of each instruction's result."""
    return [Value(instruction, path) for instruction in instructions]


def _same_element(operand: Instruction, path: tuple[int, ...]) -> Value:
    """An operand that is passed on; the path means something in it only if it is a
    tuple too.
    """
    if operand.type.startswith("("):
        return Value(operand, path)
    return Value(operand)


def _reachable(
    values: Iterable[Value], neighbours: Callable[[Value], Iterable[Value]]
) -> list[Value]:
    """These values, their neighbours, the neighbours of those, and so on, each once."""
    # A dict is a set in the order of insertion, which makes the result the same in
    # every run.
    visited: dict[Value, None] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in visited:
            visited[value] = None
            waiting += neighbours(value)
    return list(visited)


def _find_callers(computations: Mapping[str, Computation]) -> dict[str, _Caller]:
    """By computation, the instruction whose operands its parameters are."""
    callers: dict[str, _Caller] = {}
    for instruction in all_instructions(computations):
        callees = instruction.callees
        if not callees:
            continue
        operands = computations[instruction.computation].operands(instruction)
        match instruction.operation:
            case "while":
                callers |= dict.fromkeys(callees, _Caller(operands, loop=instruction))
            case "conditional":
                # The first operand of a conditional selects the branch, and each branch
                # has one of the others.
                arguments = ([operand] for operand in operands[1:])
                callers |= dict(zip(callees, map(_Caller, arguments), strict=False))
            # The parameters of what a reduction applies are elements, and not its
            # operands.
            case "fusion" | "async-start" | "call":
                callers |= dict.fromkeys(callees, _Caller(operands))
    return callers
