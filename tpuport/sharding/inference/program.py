"""A traced program as a list of operations on dimensions, with nested calls, branches and loops laid out flat."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jax.extend import core
from jax.extend.core import ClosedJaxpr, Jaxpr

from tpuport.jaxprs import SubJaxpr, sub_jaxprs
from tpuport.sharding.inference.factors import unify_each
from tpuport.sharding.inference.operations import Operation, Value, describe, new_value

_PRODUCTS: Final = frozenset(("dot_general", "conv_general_dilated", "ragged_dot_general", "gather"))


@dataclasses.dataclass
class Program:
    """Operations in an order in which each comes after those that make its inputs, but for values carried by loops.

    Attributes:
        weights: by name.
        inputs: arguments that are no weights.
        outputs: the results of the program.
        users: of each value, the positions of the operations that it is an input of.
    """

    weights: dict[str, Value]
    inputs: frozenset[Value] = frozenset()
    operations: list[Operation] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.users: defaultdict[Value, list[int]] = defaultdict(list)
        self._makers: dict[Value, Operation] = {}

    def add(self, operation: Operation) -> None:
        for value in operation.inputs:
            self.users[value].append(len(self.operations))
        self._makers.update(dict.fromkeys(operation.outputs, operation))
        self.operations.append(operation)

    def is_cheap(self, value: Value) -> bool:
        """Whether no product or table is behind an array: a mask, positions, an input of the program."""
        return all(maker.name not in _PRODUCTS for maker in self._behind(value))

    def depends_on_input(self, value: Value) -> bool:
        """Whether an input of the program is behind an array."""
        sources = {source for maker in self._behind(value) for source in maker.inputs}
        return not self.inputs.isdisjoint(sources | {value})

    def _behind(self, value: Value) -> Iterator[Operation]:
        """The operations that an array comes from, the last one first."""
        reached, seen = [value], {value}
        for current in reached:
            maker = self._makers.get(current)
            if maker is not None:
                yield maker
                reached += [source for source in maker.inputs if source not in seen]
                seen.update(maker.inputs)


def read_program(closed: ClosedJaxpr, names: Sequence[str], inputs: int) -> Program:
    """The program of a jaxpr.

    Args:
        names: of the weights, which are its first arguments.
        inputs: how many of its last arguments are inputs; those between are buffers.
    """
    arguments = [new_value(variable) for variable in closed.jaxpr.invars]
    for name, value in zip(names, arguments, strict=False):
        value.weight = name
    weights = {value.weight: value for value in arguments if value.weight is not None}
    program = Program(weights, frozenset(arguments[len(arguments) - inputs :]))
    constants = [new_value(variable) for variable in closed.jaxpr.constvars]
    program.outputs = _Reader(program).read(closed.jaxpr, constants, arguments)
    return program


class _Reader:
    """Lays out jaxprs. Calls of one function share its jaxpr, so each reading has its own map of variables."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # Scalars that tell on which platform the program runs.
        self.platforms: set[Value] = set()

    def read(self, jaxpr: Jaxpr, constants: Iterable[Value], arguments: Iterable[Value]) -> list[Value]:
        """Lay out a jaxpr; its results."""
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for equation in jaxpr.eqns:
            inputs = [_value_of(variable, values) for variable in equation.invars]
            outputs = self._read_equation(equation, inputs)
            values.update(zip(equation.outvars, outputs, strict=True))
        return [_value_of(variable, values) for variable in jaxpr.outvars]

    def _read_equation(self, equation: Any, inputs: list[Value]) -> Sequence[Value]:
        parts = [part for part in sub_jaxprs(equation) if part.kind != "kernel"]
        if parts and all(len(part.operands) == len(part.jaxpr.invars) for part in parts):
            return self._read_parts(equation, parts, inputs)
        operation = describe(equation, inputs)
        self.program.add(operation)
        if operation.name == "platform_index" or not self.platforms.isdisjoint(inputs):
            self.platforms.update(operation.outputs)
        return operation.outputs

    def _read_parts(self, equation: Any, parts: list[SubJaxpr], inputs: list[Value]) -> list[Value]:
        values = {id(variable): value for variable, value in zip(equation.invars, inputs, strict=True)}
        match parts[0].kind:
            case "call":
                # Others of the same equation, such as derivatives, are not what runs.
                return self._read_part(parts[0], values)
            case "branch" if inputs[0] in self.platforms:
                # The last branch is that of the platforms that have none of their own, as TPUs do.
                return self._read_part(parts[-1], values)
            case "branch":
                return self._join([self._read_part(part, values) for part in parts])
            case "scan":
                return self._read_scan(equation, parts[0], values)
        return self._read_while(parts, values)

    def _read_part(self, part: SubJaxpr, values: Mapping[int, Value]) -> list[Value]:
        constants = [new_value(variable) for variable in part.jaxpr.constvars]
        return self.read(part.jaxpr, constants, [values[id(operand)] for operand in part.operands])

    def _join(self, results: list[list[Value]]) -> list[Value]:
        """The results of branches: what one divides, all divide."""
        for others in results[:-1]:
            for value, other in zip(results[-1], others, strict=True):
                _unify_values(value, other)
        return results[-1]

    def _read_scan(self, equation: Any, part: SubJaxpr, values: Mapping[int, Value]) -> list[Value]:
        arguments = []
        for index, operand in enumerate(part.operands):
            value = values[id(operand)]
            if index in part.rows:
                row = Value(value.shape[1:], value.dimensions[1:], value.weight)
                self.program.add(Operation(equation, [value], [row]))
                value = row
            arguments.append(value)
        constants = [new_value(variable) for variable in part.jaxpr.constvars]
        results = self.read(part.jaxpr, constants, arguments)
        carried = len(part.carries)
        for index, result in zip(part.carries, results, strict=False):
            _unify_values(arguments[index], result)
        outputs = results[:carried]
        for row, variable in zip(results[carried:], equation.outvars[carried:], strict=True):
            stacked = new_value(variable)
            stacked.dimensions = (stacked.dimensions[0], *row.dimensions)
            self.program.add(Operation(equation, [row], [stacked]))
            outputs.append(stacked)
        return outputs

    def _read_while(self, parts: list[SubJaxpr], values: Mapping[int, Value]) -> list[Value]:
        condition, body = parts
        self._read_part(condition, values)
        results = self._read_part(body, values)
        for index, result in zip(body.carries, results, strict=True):
            _unify_values(values[id(body.operands[index])], result)
        return results


def _value_of(variable: Any, values: Mapping[Any, Value]) -> Value:
    if isinstance(variable, core.Literal):
        return new_value(variable)
    return values[variable]


def _unify_values(value: Value, other: Value) -> None:
    if value.shape == other.shape:
        unify_each(value.dimensions, other.dimensions)
