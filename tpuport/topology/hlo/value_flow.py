"""Where the values of a compiled program come from and where they go.

HLO hides that two values are the same behind tuples and their elements, what loops carry, the arguments and results of
fusions, calls and branches, and operations that only move or view an array. `ValueFlow` follows a value through all of
that. Everything that asks "what is this array?" of a program's text uses it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo.instructions import Computation, Instruction

_LOOP_ATTRIBUTES: Final = ("body", "condition")


class Value(NamedTuple):
    """The result of an instruction, or a part of it.

    Attributes:
        instruction: that has the result.
        path: the indices that lead to an element of nested tuples; empty for the whole result.
    """

    instruction: Instruction
    path: tuple[int, ...] = ()


Passes = Callable[[Instruction, Sequence[Instruction]], Iterable[Instruction]]


class _Caller(NamedTuple):
    """An instruction that runs a computation, and the operands that are the computation's parameters, in order."""

    instruction: Instruction
    arguments: tuple[Instruction, ...]
    is_loop: bool = False


class ValueFlow:
    """Follows values backward to their sources, and forward to what they become.

    Tuples are always followed, and so is the end of an asynchronous operation to its start.

    Args:
        computations: of the program, by name.
        passes: the operands whose values an instruction's result is, given the instruction and its operands: of a
            bitcast its operand, of a sum none. It is asked of every operation that this class does not know itself.
        looks_inside: whether values are followed into and out of fusions, calls, branches and loops. Otherwise the
            result of a loop is what the loop starts with, as they share their memory, and a fusion is asked `passes`.
    """

    def __init__(
        self, computations: Mapping[str, Computation], passes: Passes, *, looks_inside: bool = True
    ) -> None:
        self._computations = computations
        self._passes = passes
        self._looks_inside = looks_inside
        self._callers = _find_callers(computations) if looks_inside else {}
        self._numbers = {
            parameter: number
            for computation in computations.values()
            for number, parameter in computation.parameters.items()
        }

    def sources(self, value: Value) -> list[Value]:
        """The values, one step back, that this value is.

        An element that a loop carries has two: what the loop starts with, then what a round makes of it. The result of
        a conditional has one for each branch. A value that is computed here has none.
        """
        instruction, path = value
        operands = self._operands(instruction)
        match instruction.operation:
            case "parameter":
                return self._arguments(instruction, path)
            case "get-tuple-element":
                path = (instruction.tuple_index, *path)
                return [Value(operand, path) for operand in operands]
            case "tuple" if path:
                element = operands[path[0] : path[0] + 1]
                return [Value(operand, path[1:]) for operand in element]
            case "tuple":
                return [Value(operand) for operand in operands]
            case "while" if not self._looks_inside:
                return [Value(operand, path) for operand in operands]
        roots = self._roots(instruction)
        if instruction.operation == "while":
            return [Value(source, path) for source in (*operands, *roots)]
        if roots:
            return [Value(root, path) for root in roots]
        if instruction.operation.endswith("-done"):
            # What a start gives is a tuple with operands and semaphores in it, so that the path says nothing.
            return [Value(operand) for operand in operands[:1]]
        return [_same_element(operand, path) for operand in self._passes(instruction, operands)]

    def origin(self, value: Value) -> Value:
        """Follow a value back as long as it has one source."""
        sources = self.sources(value)
        while len(sources) == 1:
            [value] = sources
            sources = self.sources(value)
        return value

    def trace(self, values: Iterable[Value]) -> list[Value]:
        """These values and all that they come from."""
        visited: dict[Value, None] = {}
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in visited:
                visited[value] = None
                waiting += self.sources(value)
        return list(visited)

    def reach(self, values: Iterable[Value]) -> set[Value]:
        """These values and all that they become, anywhere in the program."""
        results = self._direct_results()
        reached: set[Value] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in reached:
                reached.add(value)
                waiting += results.get(value, ())
        return reached

    def enclosing_loop(self, parameter: Instruction) -> Instruction | None:
        """The loop that carries a parameter of its body or condition."""
        caller = self._callers.get(parameter.computation)
        return caller.instruction if caller is not None and caller.is_loop else None

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        return self._computations[instruction.computation].operands(instruction)

    def _arguments(self, parameter: Instruction, path: tuple[int, ...]) -> list[Value]:
        """What a parameter is given where its computation is called."""
        caller = self._callers.get(parameter.computation)
        number = self._numbers.get(parameter)
        if caller is None or number is None:
            return []
        arguments = [Value(argument, path) for argument in caller.arguments[number : number + 1]]
        if caller.is_loop:
            arguments += [Value(root, path) for root in self._roots(caller.instruction)]
        return arguments

    def _roots(self, instruction: Instruction) -> list[Instruction]:
        """The roots of the computations whose results are the instruction's."""
        if not self._looks_inside:
            return []
        names = _result_computations(instruction)
        return [self._computations[name].root for name in names if name in self._computations]

    def _direct_results(self) -> dict[Value, list[Value]]:
        """The inverse of `sources`, over all values of the program and the elements that any of them takes."""
        results: dict[Value, list[Value]] = {}
        whole_results = (
            Value(instruction)
            for computation in self._computations.values()
            for instruction in computation.instructions
        )
        for value in self.trace(whole_results):
            for source in self.sources(value):
                results.setdefault(source, []).append(value)
        return results


def _same_element(operand: Instruction, path: tuple[int, ...]) -> Value:
    """An operand that is passed on; the path means something in it only if it is a tuple too."""
    return Value(operand, path if operand.type.startswith("(") else ())


def _result_computations(instruction: Instruction) -> tuple[str, ...]:
    match instruction.operation:
        case "while":
            return instruction.calls.get("body", ())
        case "conditional":
            return instruction.branches
        case "call":
            return instruction.calls.get("to_apply", ()) or instruction.calls.get("calls", ())
        case "fusion" | "async-start":
            return instruction.calls.get("calls", ())
    return ()


def _find_callers(computations: Mapping[str, Computation]) -> dict[str, _Caller]:
    """By computation, the instruction whose operands its parameters are."""
    callers: dict[str, _Caller] = {}
    for computation in computations.values():
        for instruction in computation.instructions:
            if not instruction.calls:
                continue
            operands = tuple(computation.operands(instruction))
            for attribute in _LOOP_ATTRIBUTES:
                for name in instruction.calls.get(attribute, ()):
                    callers[name] = _Caller(instruction, operands, is_loop=True)
            for index, name in enumerate(instruction.branches, start=1):
                # The first operand of a conditional selects the branch, and each branch has one of the others.
                callers[name] = _Caller(instruction, operands[index : index + 1])
            # The parameters of what a reduction applies are elements, and not its operands.
            if instruction.operation in ("fusion", "async-start", "call"):
                for name in _result_computations(instruction):
                    callers[name] = _Caller(instruction, operands)
    return callers
