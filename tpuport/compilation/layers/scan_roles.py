"""What a run of equal units takes from outside, from one another, and gives: the form
of the scan that does the same.

A unit is the equations of one block call, or of a few. Units are compared before, so
that their operands correspond by position.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import dtypes
from jax.extend.core import JaxprEqn, Literal, Var

from tpuport.compilation.layers.block_calls import LiveProgram, variables
from tpuport.compilation.layers.equivalence import is_same_aval, is_same_literal

# Arrays that differ from block to block and are not rows of one are stacked in the
# program if each is this small.
_MAX_STACKED_BYTES = 1 << 20


class Slot(NamedTuple):
    """An operand or a result in a unit: the index of its equation, and its position
    there.
    """

    equation: int
    position: int


class _Source(NamedTuple):
    """Where an operand comes from: a unit, by its index, and the slot of its result
    there.
    """

    unit: int
    slot: Slot


# Of operands that no unit makes.
_OUTSIDE = _Source(-1, Slot(-1, -1))


class NoScanError(Exception):
    """A run of units cannot be a scan. `unit` is the index of the unit that shows
    it.
    """

    def __init__(self, reason: str, unit: int) -> None:
        super().__init__(reason)
        self.unit = unit


@dataclasses.dataclass(frozen=True)
class Closed:
    """An operand with the same value for all units."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Carried:
    """An operand that is a result of the unit before; for the first unit, `first`."""

    result: Slot
    first: Any


@dataclasses.dataclass(frozen=True)
class Row:
    """An operand that is row `base + unit * stride` of one array."""

    array: Any
    base: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Each:
    """An operand that is another small array for each unit."""

    values: tuple[Any, ...]


Role = Closed | Carried | Row | Each


class RunInput(NamedTuple):
    """What a run takes from outside of a unit, and the operands of a unit that are
    it.
    """

    role: Role
    operands: tuple[Slot, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """Units that a scan can do.

    Attributes:
        units: the indices of their equations.
        body: the equations of the first.
        inputs: what they take from outside, each combination of values once.
        last: results that only the last unit is asked for, with the variable of that.
        each: results that other units are asked for, with their variables by unit.
    """

    units: tuple[tuple[int, ...], ...]
    body: tuple[JaxprEqn, ...]
    inputs: tuple[RunInput, ...]
    last: dict[Slot, Var]
    each: dict[Slot, dict[int, Var]]

    @property
    def indices(self) -> Iterator[int]:
        """Of all equations."""
        return itertools.chain.from_iterable(self.units)

    @property
    def first_index(self) -> int:
        """Of its first equation, by which a run is known."""
        return self.units[0][0]

    @property
    def carried(self) -> list[Carried]:
        """The inputs that are results of the unit before."""
        return [role for role, _ in self.inputs if isinstance(role, Carried)]

    def result(self, slot: Slot) -> Var:
        """The variable of a result of the first unit."""
        return self.body[slot.equation].outvars[slot.position]


def analyze_run(program: LiveProgram, units: Sequence[Sequence[int]]) -> Run:
    """The scan that does what these units do.

    Raises:
        NoScanError: there is none.
    """
    return _RunAnalysis(program, units).run()


def _is_unordered_callback(equation: JaxprEqn) -> bool:
    """Whether jax promises no order for it anyway: the checks of indices are such
    calls.
    """
    return equation.primitive.name == "io_callback" and not equation.params["ordered"]


class _RunAnalysis:
    def __init__(self, program: LiveProgram, units: Sequence[Sequence[int]]) -> None:
        self._program = program
        self._units = tuple(map(tuple, units))
        self._equations = list(map(program.equations_of, units))
        self._inside = set(itertools.chain.from_iterable(units))
        self._after = program.successors(self._inside)
        self._results: dict[Var, _Source] = {
            variable: _Source(unit, Slot(number, index))
            for unit, equations in enumerate(self._equations)
            for number, equation in enumerate(equations)
            for index, variable in enumerate(equation.outvars)
        }

    def run(self) -> Run:
        body = self._equations[0]
        if any(
            equation.effects and not _is_unordered_callback(equation)
            for equation in body
        ):
            raise NoScanError("it has side effects, whose order a scan would change", 0)
        inputs = tuple(
            RunInput(self._role(values), tuple(slots))
            for values, slots in self._outer_operands()
        )
        last: dict[Slot, Var] = {}
        each: dict[Slot, dict[int, Var]] = {}
        last_unit = len(self._units) - 1
        for slot, by_unit in self._used_results().items():
            # A loop's state holds one value; the results of other units have to be
            # collected.
            if by_unit.keys() == {last_unit}:
                last[slot] = by_unit[last_unit]
            else:
                each[slot] = by_unit
        return Run(self._units, tuple(body), inputs, last, each)

    def _outer_operands(self) -> list[tuple[list[Any], list[Slot]]]:
        """What the units take from outside of themselves: its values by unit, and
        where; each combination once.
        """
        operands: dict[Any, tuple[list[Any], list[Slot]]] = {}
        # By id, because literals cannot be hashed.
        own = {
            id(variable)
            for equation in self._equations[0]
            for variable in equation.outvars
        }
        # The first unit shows the positions; the others have their operands at the same
        # ones.
        for number, same_equations in enumerate(zip(*self._equations, strict=True)):
            operands_by_position = zip(
                *(equation.invars for equation in same_equations), strict=True
            )
            for index, values in enumerate(operands_by_position):
                if id(values[0]) not in own:
                    _, slots = operands.setdefault(
                        tuple(map(id, values)), (list(values), [])
                    )
                    slots.append(Slot(number, index))
        return list(operands.values())

    def _used_results(self) -> dict[Slot, dict[int, Var]]:
        """The results that something outside of the units takes, with their variables
        by unit.
        """
        used = set(variables(self._program.results))
        for index in set(range(len(self._program.equations))) - self._inside:
            used.update(variables(self._program.equations[index].invars))
        results: dict[Slot, dict[int, Var]] = collections.defaultdict(dict)
        for variable, (unit, slot) in self._results.items():
            if variable in used:
                results[slot][unit] = variable
        return dict(results)

    def _role(self, values: list[Any]) -> Role:
        """What an operand is, given its value in each unit."""
        # A result of any of the units: then it has to be that of the unit before.
        if any(variable in self._results for variable in variables(values)):
            return self._carried(values)
        # The scan runs all units at once, so nothing between two of them can take from
        # one and give to another.
        for unit, value in enumerate(values):
            if self._program.producer(value) in self._after:
                reason = f"it takes {value.aval}, which comes from an earlier block by another way"
                raise NoScanError(reason, unit)
        first = values[0]
        if all(value is first or is_same_literal(value, first) for value in values):
            return Closed(first)
        return self._row(values) or self._each(values)

    def _carried(self, values: list[Any]) -> Carried:
        sources = list(map(self._source, values))
        if sources[0] != _OUTSIDE:
            raise NoScanError("it takes a result of a later block", 0)
        # What the second unit takes of the first one, every later unit has to take of
        # the one before it.
        slot = sources[1].slot
        for unit, source in enumerate(sources[1:], start=1):
            if source != (unit - 1, slot):
                reason = f"it takes {values[unit].aval} from elsewhere than the block before takes its own"
                raise NoScanError(reason, unit)
        return Carried(slot, values[0])

    def _source(self, value: Any) -> "_Source":
        """Which result of the units an operand is, if it is one."""
        if isinstance(value, Literal):
            return _OUTSIDE
        return self._results.get(value, _OUTSIDE)

    def _row(self, values: list[Any]) -> Row | None:
        """The role if the values are rows of one array at equal distances."""
        rows = list(map(self._row_of_array, values))
        if None in rows:
            return None
        # A run has at least two units.
        (array, base), (_, second) = rows[:2]  # type: ignore[misc]
        stride = second - base
        if rows != [(array, base + unit * stride) for unit in range(len(rows))]:
            return None
        return Row(array, base, stride)

    def _row_of_array(self, value: Any) -> tuple[Any, int] | None:
        """(array, index) of a value that is one row of an array: a slice without its
        first axis.
        """
        squeeze = self._program.producing_equation(value)
        if squeeze is None or (
            squeeze.primitive.name,
            squeeze.params.get("dimensions"),
        ) != ("squeeze", (0,)):
            return None
        cut = self._program.producing_equation(squeeze.invars[0])
        if cut is None or cut.primitive.name != "slice":
            return None
        array: Any = cut.invars[0]
        row = int(cut.params["start_indices"][0])
        # The slice has to be whole along all other axes.
        starts, ends = (
            (row, *[0] * (array.aval.ndim - 1)),
            (row + 1, *array.aval.shape[1:]),
        )
        bounds = (cut.params["start_indices"], cut.params["limit_indices"])
        if bounds != (starts, ends) or not set(cut.params["strides"] or ()) <= {1}:
            return None
        return array, row

    def _each(self, values: list[Any]) -> Each:
        aval: Any = values[0].aval
        for unit, value in enumerate(values):
            if not is_same_aval(value.aval, aval):
                raise NoScanError(f"it takes {value.aval}, another block {aval}", unit)
        # The second unit is the first that shows it. Keys of random numbers cannot be
        # stacked like numbers.
        if jnp.issubdtype(aval.dtype, dtypes.extended):
            raise NoScanError(f"it takes {aval} of its own", 1)
        if prod(aval.shape) * aval.dtype.itemsize > _MAX_STACKED_BYTES:
            raise NoScanError(
                f"each takes {aval} of its own, and these would have to be copied together",
                1,
            )
        return Each(tuple(values))
