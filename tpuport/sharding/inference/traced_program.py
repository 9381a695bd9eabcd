"""A traced program as a list of operations on dimensions, with nested calls, branches
and loops laid out flat.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jax.extend import core
from jax.extend.core import ClosedJaxpr, Jaxpr

from tpuport.compat.jaxprs import SubJaxpr, sub_jaxprs
from tpuport.sharding.inference.factors import unify_each
from tpuport.sharding.inference.operations import Operation, Value, describe, new_value

# What makes an array that is not cheap: matrix products, and look-ups in a table.
_PRODUCTS: Final = frozenset(
    ("dot_general", "conv_general_dilated", "ragged_dot_general", "gather")
)


@dataclasses.dataclass
class Program:
    """Operations in an order in which each comes after those that make its inputs, but
    for values carried by loops.

    Attributes:
        weights: by name.
        inputs: arguments of the call, without weights and buffers.
        operations: equations of all nested jaxprs, in one list.
        outputs: the results of the program.
    """

    weights: dict[str, Value]
    inputs: frozenset[Value] = frozenset()
    operations: list[Operation] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._users: defaultdict[Value, set[int]] = defaultdict(set)
        self._makers: dict[Value, Operation] = {}
        self._names_of_weights = {value: name for name, value in self.weights.items()}

    def add(self, operation: Operation) -> None:
        """Append an operation."""
        for value in operation.inputs:
            self._users[value].add(len(self.operations))
        self._makers.update(dict.fromkeys(operation.outputs, operation))
        self.operations.append(operation)

    def positions_of_users(self, value: Value) -> frozenset[int]:
        """The positions of the operations that a value is an input of."""
        # `get`, since a look-up with [] would add a value that nothing uses.
        return frozenset(self._users.get(value, ()))

    def users_of(self, values: Iterable[Value]) -> list[Operation]:
        """The operations that have one of these values as an input, in the program's
        order.
        """
        positions = frozenset().union(*map(self.positions_of_users, values))
        return [self.operations[position] for position in sorted(positions)]

    def maker_of(self, value: Value) -> Operation | None:
        """The operation that an array is a result of; None for weights, inputs and
        constants.
        """
        return self._makers.get(value)

    def weight_of(self, value: Value) -> str | None:
        """The name of the weight that an array is, maybe in another layout or dtype;
        None if it is something else.
        """
        while value not in self._names_of_weights:
            maker = self.maker_of(value)
            if maker is None or len(maker.inputs) != 1:
                return None
            [value] = maker.inputs
        return self._names_of_weights[value]

    def used_weights(self) -> dict[str, Value]:
        """The weights that this call uses; nothing is known about the others."""
        return {
            name: value for name, value in self.weights.items() if value in self._users
        }

    def is_idle(self, operation: Operation) -> bool:
        """Whether no result depends on an operation, and it is not a product.

        Products count as used: of the last block of two streams, the compiler leaves
        out one, and it should be divided like those of the other blocks.
        """
        return operation.is_unused and operation.name not in _PRODUCTS

    def is_cheap(self, value: Value) -> bool:
        """Whether no product or table is behind an array: a mask, positions, an input
        of the program.
        """
        return all(maker.name not in _PRODUCTS for maker in self._behind(value))

    def depends_on_input(self, value: Value) -> bool:
        """Whether an input of the program is behind an array."""
        sources = itertools.chain.from_iterable(
            maker.inputs for maker in self._behind(value)
        )
        return not self.inputs.isdisjoint({value, *sources})

    def _behind(self, value: Value) -> Iterator[Operation]:
        """The operations that an array comes from, the last one first."""
        seen = {value}
        pending = [value]
        # `pending` grows while it is walked.
        for current in pending:
            maker = self._makers.get(current)
            if maker is None:
                continue
            yield maker
            pending += [source for source in maker.inputs if source not in seen]
            seen.update(maker.inputs)


def read_program(closed: ClosedJaxpr, names: Sequence[str], inputs: int) -> Program:
    """The program of a jaxpr.

    Args:
        names: of the weights, which are its first arguments.
        inputs: how many of its last arguments are inputs; those between are buffers.
    """
    arguments = list(map(new_value, closed.jaxpr.invars))
    # Not strict: buffers and inputs follow the weights.
    weights = dict(zip(names, arguments, strict=False))
    # Not [-inputs:], which is everything for a call without tensors.
    program = Program(weights, frozenset(arguments[len(arguments) - inputs :]))
    constants = list(map(new_value, closed.jaxpr.constvars))
    program.outputs = _Reader(program).read(closed.jaxpr, constants, arguments)
    return program


class _Reader:
    """Lays out jaxprs. Calls of one function share its jaxpr, so each reading has its
    own map of variables.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        # Scalars that tell which platform the program runs on, by which
        # `platform_dependent` chooses a branch.
        self.platforms: set[Value] = set()
        self.enclosing: tuple[Any, ...] = ()
        self.is_unused = False

    def read(
        self, jaxpr: Jaxpr, constants: Iterable[Value], arguments: Iterable[Value]
    ) -> list[Value]:
        """Lay out a jaxpr; its results."""
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        unused, is_unused = _unused_equations(jaxpr), self.is_unused
        for equation in jaxpr.eqns:
            inputs = [_value_of(variable, values) for variable in equation.invars]
            self.is_unused = is_unused or id(equation) in unused
            outputs = self._read_equation(equation, inputs)
            values.update(zip(equation.outvars, outputs, strict=True))
        self.is_unused = is_unused
        return [_value_of(variable, values) for variable in jaxpr.outvars]

    def _read_equation(self, equation: Any, inputs: list[Value]) -> Sequence[Value]:
        # A kernel works on blocks of its operands: its dimensions are not those of the
        # arrays.
        parts = [part for part in sub_jaxprs(equation) if part.kind != "kernel"]
        if parts and all(map(_has_operands, parts)):
            outer = self.enclosing
            self.enclosing = (equation, *outer)
            results = self._read_parts(equation, parts, inputs)
            self.enclosing = outer
            return results
        operation = describe(equation, inputs)
        operation.enclosing = self.enclosing
        operation.is_unused = self.is_unused
        self.program.add(operation)
        if operation.name == "platform_index" or not self.platforms.isdisjoint(inputs):
            self.platforms.update(operation.outputs)
        return operation.outputs

    def _read_parts(
        self, equation: Any, parts: list[SubJaxpr], inputs: list[Value]
    ) -> list[Value]:
        values = {
            id(variable): value
            for variable, value in zip(equation.invars, inputs, strict=True)
        }
        match parts[0].kind:
            case "call":
                # Others of the same equation, such as derivatives, are not what runs.
                return self._read_part(parts[0], values)
            case "branch" if inputs[0] in self.platforms:
                # `platform_dependent` puts its default last, which TPUs run unless they
                # have a branch of their own.
                return self._read_part(parts[-1], values)
            case "branch":
                return self._join([self._read_part(part, values) for part in parts])
            case "scan":
                return self._read_scan(equation, parts[0], values)
        return self._read_while(parts, values)

    def _read_part(self, part: SubJaxpr, values: Mapping[int, Value]) -> list[Value]:
        """Lay out a jaxpr whose arguments are operands of the equation, by their ids;
        its results.
        """
        constants = map(new_value, part.jaxpr.constvars)
        return self.read(
            part.jaxpr, constants, [values[id(operand)] for operand in part.operands]
        )

    def _join(self, results: list[list[Value]]) -> list[Value]:
        """The results of branches: what one divides, all divide."""
        *others, last = results
        for other in others:
            _unify_all(last, other)
        return last

    def _read_scan(
        self, equation: Any, part: SubJaxpr, values: Mapping[int, Value]
    ) -> list[Value]:
        """Lay out one iteration, between operations that take rows of its inputs and
        stack those of its results.
        """
        arguments = [values[id(operand)] for operand in part.operands]
        for index in part.rows:
            arguments[index] = self._take_row(equation, arguments[index])
        constants = map(new_value, part.jaxpr.constvars)
        results = self.read(part.jaxpr, constants, arguments)
        carried = len(part.carries)
        # A carried value goes round: it has to be divided alike before and after an
        # iteration.
        _unify_all([arguments[index] for index in part.carries], results[:carried])
        stacked = zip(results[carried:], equation.outvars[carried:], strict=True)
        return results[:carried] + [
            self._stack_rows(equation, row, variable) for row, variable in stacked
        ]

    def _take_row(self, equation: Any, value: Value) -> Value:
        """The row [...] of a value [length, ...] that an iteration reads."""
        row = Value(value.shape[1:], value.dimensions[1:])
        self.program.add(Operation(equation, [value], [row]))
        return row

    def _stack_rows(self, equation: Any, row: Value, variable: Any) -> Value:
        """The result [length, ...] of the rows [...] that iterations return."""
        stacked = new_value(variable)
        stacked.dimensions = (*stacked.dimensions[:1], *row.dimensions)
        self.program.add(Operation(equation, [row], [stacked]))
        return stacked

    def _read_while(
        self, parts: list[SubJaxpr], values: Mapping[int, Value]
    ) -> list[Value]:
        condition, body = parts
        # Its result is only a bool, but what it compares may be needed whole.
        self._read_part(condition, values)
        results = self._read_part(body, values)
        carried = [body.operands[index] for index in body.carries]
        _unify_all([values[id(operand)] for operand in carried], results)
        return results


def _unused_equations(jaxpr: Jaxpr) -> set[int]:
    """The ids of the equations of a jaxpr itself that none of its results and no effect
    depends on.
    """
    needed = {
        variable for variable in jaxpr.outvars if not isinstance(variable, core.Literal)
    }
    unused: set[int] = set()
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            needed.update(
                variable
                for variable in equation.invars
                if not isinstance(variable, core.Literal)
            )
        else:
            unused.add(id(equation))
    return unused


def _value_of(variable: Any, values: Mapping[Any, Value]) -> Value:
    if isinstance(variable, core.Literal):
        return new_value(variable)
    return values[variable]


def _has_operands(part: SubJaxpr) -> bool:
    """Whether the arguments of a jaxpr are the equation's operands, and not single
    elements of them.

    `reduce` and `reduce_window` have a jaxpr that combines two elements, with as many
    arguments as they have operands.
    """
    if len(part.operands) != len(part.jaxpr.invars):
        return False
    if part.kind != "call":
        return True
    shapes = [getattr(operand.aval, "shape", ()) for operand in part.operands]
    return shapes == [
        getattr(variable.aval, "shape", ()) for variable in part.jaxpr.invars
    ]


def _unify_all(values: Sequence[Value], others: Sequence[Value]) -> None:
    """Make pairs of values have the same dimensions."""
    for value, other in zip(values, others, strict=True):
        # Without one shape, nothing can be said about their dimensions.
        if value.shape == other.shape:
            unify_each(value.dimensions, other.dimensions)
