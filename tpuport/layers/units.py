"""The equations of a traced program by block call, with what stands between two calls put to the later one."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from tpuport.layers.scopes import mark_of


@dataclasses.dataclass(frozen=True)
class Program:
    """A flat program without dead equations.

    Attributes:
        equations: in order.
        made: which equation makes a variable.
        results: the program's.
    """

    equations: tuple[JaxprEqn, ...]
    made: dict[Var, int]
    results: tuple[Any, ...]

    def sources(self, number: int) -> set[int]:
        """The equations whose results an equation takes."""
        taken = self.equations[number].invars
        return {self.made[x] for x in taken if not isinstance(x, Literal) and x in self.made}

    def after(self, numbers: Iterable[int]) -> set[int]:
        """The equations that take, directly or not, results of these; without these."""
        reached = set(numbers)
        first = set(reached)
        for number in range(len(self.equations)):
            if number not in reached and self.sources(number) & reached:
                reached.add(number)
        return reached - first

    def before(self, numbers: Iterable[int]) -> set[int]:
        """The equations whose results these take, directly or not; without these."""
        reached = set(numbers)
        first = set(reached)
        for number in reversed(range(len(self.equations))):
            if number in reached:
                reached |= self.sources(number)
        return reached - first


def program(jaxpr: Jaxpr) -> Program:
    """A jaxpr without the equations that nothing needs."""
    needed = {x for x in jaxpr.outvars if not isinstance(x, Literal)}
    kept: list[JaxprEqn] = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(x in needed for x in equation.outvars):
            kept.append(equation)
            needed.update(x for x in equation.invars if not isinstance(x, Literal))
    kept.reverse()
    made = {x: number for number, equation in enumerate(kept) for x in equation.outvars}
    return Program(tuple(kept), made, tuple(jaxpr.outvars))


def calls(found: Program) -> dict[int, list[list[int]]]:
    """The equations of each call of a block, in order, by the list that the block is in."""
    by_list: dict[int, dict[int, list[int]]] = {}
    for number, equation in enumerate(found.equations):
        if mark := mark_of(equation):
            by_list.setdefault(mark.place, {}).setdefault(mark.call, []).append(number)
    return {place: list(held.values()) for place, held in by_list.items()}


def units(found: Program, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each call with the equations before it that take something from an earlier call and give something to a later."""
    inside = {number for group in groups for number in group}
    between = sorted(found.after(inside) & found.before(inside))
    result: list[list[int]] = []
    for group in groups:
        early = [number for number in between if number < group[0]]
        between = between[len(early) :]
        result.append(sorted([*early, *group]))
    return result
