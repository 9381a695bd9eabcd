"""What a run of equal units takes from outside, from one another, and gives: the shape of the scan that does the same.

A unit is the equations of one block call, or of a few; units are compared before, so that operands stand for one
another by their place.
"""

import dataclasses
from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import dtypes
from jax.extend.core import JaxprEqn, Literal, Var

from tpuport.layers.sameness import same_aval, same_literal
from tpuport.layers.units import Program

# Arrays that differ from block to block and are no slices of one are stacked in the program if each is this small.
SMALL = 1 << 20

Place = tuple[int, int]  # of an equation in its unit, and of an operand or result of it


class NoScan(Exception):
    """Why a run is no scan. `number`: of the unit where that is seen."""

    def __init__(self, reason: str, number: int) -> None:
        super().__init__(reason)
        self.number = number


@dataclasses.dataclass(frozen=True)
class Closed:
    """The same for all units."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Carried:
    """A result of the unit before, `result`; for the first unit, `first`."""

    result: Place
    first: Any


@dataclasses.dataclass(frozen=True)
class Row:
    """Row `base + number * stride` of one array."""

    array: Any
    base: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Each:
    """Small arrays, one for each unit."""

    values: tuple[Any, ...]


Role = Closed | Carried | Row | Each


@dataclasses.dataclass(frozen=True)
class Run:
    """Units that a scan can do.

    Attributes:
        units: numbers of their equations.
        body: those of the first.
        inputs: a role for each distinct operand from outside, with the places that take it.
        last: results that only the last unit's value is asked of, by place, with the variable that has it.
        each: results asked of several, by place, with their variables by unit.
    """

    units: tuple[tuple[int, ...], ...]
    body: tuple[JaxprEqn, ...]
    inputs: tuple[tuple[Role, tuple[Place, ...]], ...]
    last: dict[Place, Var]
    each: dict[Place, dict[int, Var]]


def run_of(found: Program, units: Sequence[Sequence[int]]) -> Run:
    """The scan that does what these units do.

    Raises:
        NoScan: there is none.
    """
    pieces = [[found.equations[number] for number in unit] for unit in units]
    if any(equation.effects for equation in pieces[0]):
        raise NoScan("it has side effects, whose order a scan would change", 0)
    finder = _Finder(found, units, pieces)
    inputs = tuple((finder.role(values), tuple(places)) for values, places in finder.operands())
    last, each = finder.results()
    return Run(tuple(map(tuple, units)), tuple(pieces[0]), inputs, last, each)


class _Finder:
    def __init__(self, found: Program, units: Sequence[Sequence[int]], pieces: list[list[JaxprEqn]]) -> None:
        self._found, self._pieces = found, pieces
        self._inside = {number for unit in units for number in unit}
        self._after = found.after(self._inside)
        self._made: dict[Var, tuple[int, Place]] = {
            result: (number, (e, o))
            for number, piece in enumerate(pieces)
            for e, equation in enumerate(piece)
            for o, result in enumerate(equation.outvars)
        }

    def operands(self) -> list[tuple[list[Any], list[Place]]]:
        """What the units take from outside of themselves, by unit, and where; each combination once."""
        distinct: dict[Any, tuple[list[Any], list[Place]]] = {}
        own = {result for equation in self._pieces[0] for result in equation.outvars}
        for e, equation in enumerate(self._pieces[0]):
            for o, operand in enumerate(equation.invars):
                if isinstance(operand, Literal) or operand not in own:
                    values = [piece[e].invars[o] for piece in self._pieces]
                    distinct.setdefault(tuple(map(id, values)), (values, []))[1].append((e, o))
        return list(distinct.values())

    def role(self, values: list[Any]) -> Role:
        first = values[0]
        if any(not isinstance(value, Literal) and value in self._made for value in values):
            return self._carried(values)
        for number, value in enumerate(values):
            if not isinstance(value, Literal) and self._found.made.get(value) in self._after:
                raise NoScan(
                    f"it takes {value.aval}, which comes from an earlier block by another way", number
                )
        if all(value is first for value in values) or _one_literal(values):
            return Closed(first)
        return self._row(values) or self._each(values)

    def _carried(self, values: list[Any]) -> Carried:
        sources = [None if isinstance(x, Literal) else self._made.get(x) for x in values]
        if sources[0] is not None:
            raise NoScan("it takes a result of a later block", 0)
        result = sources[1][1] if sources[1] else None
        for number, source in enumerate(sources[1:], start=1):
            if source is None or result is None or source != (number - 1, result):
                raise NoScan(
                    f"it takes {values[number].aval} from elsewhere than the block before takes its own",
                    number,
                )
        return Carried(result or (0, 0), values[0])

    def _row(self, values: list[Any]) -> Row | None:
        rows = [self._row_of(value) for value in values]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            return None
        array, base = known[0]
        stride = known[1][1] - base
        wanted = [(array, base + number * stride) for number in range(len(known))]
        same = all(a is b and m == n for (a, m), (b, n) in zip(known, wanted, strict=True))
        return Row(array, base, stride) if same else None

    def _row_of(self, value: Any) -> tuple[Any, int] | None:
        """(array, index) of a value that is one row of it."""
        equation = self._equation(value, "squeeze")
        if equation is None or equation.params["dimensions"] != (0,):
            return None
        cut = self._equation(equation.invars[0], "slice")
        if cut is None or any(x != 1 for x in cut.params["strides"] or ()):
            return None
        array: Any = cut.invars[0]
        start, end = cut.params["start_indices"], cut.params["limit_indices"]
        whole = not any(start[1:]) and tuple(end[1:]) == tuple(array.aval.shape[1:])
        return (array, int(start[0])) if whole and end[0] == start[0] + 1 else None

    def _equation(self, value: Any, primitive: str) -> JaxprEqn | None:
        number = None if isinstance(value, Literal) else self._found.made.get(value)
        equation = None if number is None else self._found.equations[number]
        return equation if equation is not None and equation.primitive.name == primitive else None

    def _each(self, values: list[Any]) -> Each:
        for number, value in enumerate(values):
            if not same_aval(value.aval, values[0].aval):
                raise NoScan(f"it takes {value.aval}, another block {values[0].aval}", number)
        aval: Any = values[0].aval
        if jnp.issubdtype(aval.dtype, dtypes.extended):
            raise NoScan(f"it takes {aval} of its own", 1)
        if prod(aval.shape) * aval.dtype.itemsize > SMALL:
            raise NoScan(f"each takes {aval} of its own, and these would have to be copied together", 1)
        return Each(tuple(values))

    def results(self) -> tuple[dict[Place, Var], dict[Place, dict[int, Var]]]:
        """(results asked of the last unit alone, of others): by place."""
        taken = {x for x in self._found.results if not isinstance(x, Literal)}
        for number, equation in enumerate(self._found.equations):
            if number not in self._inside:
                taken.update(x for x in equation.invars if not isinstance(x, Literal))
        asked: dict[Place, dict[int, Var]] = {}
        for value, (number, place) in self._made.items():
            if value in taken:
                asked.setdefault(place, {})[number] = value
        end = len(self._pieces) - 1
        last = {place: held[end] for place, held in asked.items() if held.keys() == {end}}
        return last, {place: held for place, held in asked.items() if place not in last}


def _one_literal(values: list[Any]) -> bool:
    return all(isinstance(x, Literal) for x in values) and all(same_literal(values[0], x) for x in values)
