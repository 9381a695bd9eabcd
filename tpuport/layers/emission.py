"""A traced program evaluated again with runs of equal units as scans."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from tpuport.layers.roles import Carried, Closed, Each, Place, Role, Row, Run
from tpuport.layers.scopes import unmarked
from tpuport.layers.units import Program

Node = int | Run


def order(found: Program, runs: Sequence[Run]) -> list[Node] | None:
    """Equations and runs in an order in which each has what it takes; None where there is none.

    Equations with side effects stay in their order.
    """
    owner = {number: run.units[0][0] for run in runs for unit in run.units for number in unit}
    nodes: dict[int, Node] = {number: number for number in range(len(found.equations)) if number not in owner}
    nodes |= {run.units[0][0]: run for run in runs}
    needs: dict[int, set[int]] = {key: set() for key in nodes}
    effect = None
    for number, equation in enumerate(found.equations):
        key = owner.get(number, number)
        needs[key] |= {owner.get(source, source) for source in found.sources(number)} - {key}
        if equation.effects:
            needs[key] |= set() if effect is None else {effect}
            effect = key
    return _sorted(nodes, needs)


def _sorted(nodes: dict[int, Node], needs: dict[int, set[int]]) -> list[Node] | None:
    takers: dict[int, list[int]] = {key: [] for key in nodes}
    for key, sources in needs.items():
        for source in sources:
            takers[source].append(key)
    left = {key: len(sources) for key, sources in needs.items()}
    ready = [key for key, count in left.items() if count == 0]
    heapq.heapify(ready)
    result: list[Node] = []
    while ready:
        key = heapq.heappop(ready)
        result.append(nodes[key])
        for taker in takers[key]:
            left[taker] -= 1
            if left[taker] == 0:
                heapq.heappush(ready, taker)
    return result if len(result) == len(nodes) else None


def evaluated(
    jaxpr: Jaxpr, found: Program, nodes: Sequence[Node], consts: Sequence[Any], args: Any
) -> list[Any]:
    """Traced. What the program gives for these arguments."""
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(value: Any) -> Any:
        return value.val if isinstance(value, Literal) else values[value]

    some: list[JaxprEqn] = []
    for node in nodes:
        if isinstance(node, int):
            some.append(unmarked(found.equations[node]))
            continue
        values |= _plain(jaxpr, some, read)
        some = []
        values |= _scan(jaxpr, node, read)
    values |= _plain(jaxpr, some, read)
    return [read(result) for result in jaxpr.outvars]


def _plain(jaxpr: Jaxpr, equations: list[JaxprEqn], read: Callable) -> dict[Var, Any]:
    """Traced. What the equations make, one after another."""
    made = [result for equation in equations for result in equation.outvars]
    inside = set(made)
    taken = dict.fromkeys(
        x for e in equations for x in e.invars if not isinstance(x, Literal) and x not in inside
    )
    part = jaxpr.replace(constvars=[], invars=list(taken), outvars=made, eqns=equations)
    return dict(zip(made, eval_jaxpr(part, [], *map(read, taken)), strict=True))


def _scan(jaxpr: Jaxpr, run: Run, read: Callable) -> dict[Var, Any]:
    """Traced. What the units of a run make that anyone asks for."""
    count, roles = len(run.units), [role for role, _ in run.inputs]
    carried = [role for role in roles if isinstance(role, Carried)]
    there = {role.result: number for number, role in reversed(list(enumerate(carried)))}
    extra = [place for place in run.last if place not in there]
    there |= {place: len(carried) + number for number, place in enumerate(extra)}
    body = _body(jaxpr, run, [*(role.result for role in carried), *extra, *run.each])
    closed = [read(role.value) if isinstance(role, Closed) else None for role in roles]
    rows = [_rows(role, count, read) for role in roles]
    arrays = {n: read(r.array) for n, r in enumerate(roles) if isinstance(r, Row) and rows[n] is None}

    def step(state: tuple[Any, list[Any]], slices: list[Any]) -> tuple[Any, Any]:
        number, kept = state
        held, taken = iter(kept), []
        for n, role in enumerate(roles):
            if isinstance(role, Closed):
                taken.append(closed[n])
            elif isinstance(role, Carried):
                taken.append(next(held))
            elif isinstance(role, Row) and n in arrays:
                place = role.base + role.stride * number
                taken.append(jax.lax.dynamic_index_in_dim(arrays[n], place, keepdims=False))
            else:
                taken.append(slices[n])
        results = eval_jaxpr(body, [], *taken)
        size = len(carried) + len(extra)
        return (number + 1, [_firm(x) for x in results[:size]]), results[size:]

    first = [_firm(jnp.asarray(read(role.first))) for role in carried]
    avals: list[Any] = [_result(run, place).aval for place in extra]
    first += [jnp.zeros(aval.shape, aval.dtype) for aval in avals]
    (_, final), each = jax.lax.scan(step, (jnp.int32(0), first), rows, length=count)
    made = {var: final[there[place]] for place, var in run.last.items()}
    for variables, stacked in zip(run.each.values(), each, strict=True):
        for number, var in variables.items():
            made[var] = jax.lax.index_in_dim(stacked, number, keepdims=False)
    return made


def _rows(role: Role, count: int, read: Callable) -> Any:
    """Traced. [count, ...] where the scan itself takes slices; None where it does not."""
    if isinstance(role, Each):
        values = [x.val if isinstance(x, Literal) else read(x) for x in role.values]
        dtype = role.values[0].aval.dtype
        if all(isinstance(x, Literal) for x in role.values):
            return np.stack([np.asarray(x, dtype) for x in values])
        return jnp.stack([jnp.asarray(x, dtype) for x in values])
    if isinstance(role, Row) and (role.base, role.stride) == (0, 1):
        array = read(role.array)
        return array if array.shape[0] == count else None
    return None


def _result(run: Run, place: Place) -> Var:
    return run.body[place[0]].outvars[place[1]]


def _body(jaxpr: Jaxpr, run: Run, results: list[Place]) -> Jaxpr:
    """One unit as a program of its own: its inputs are those of the run."""
    taken: list[Var] = []
    operands = [list(equation.invars) for equation in run.body]
    for role, places in run.inputs:
        e, o = places[0]
        taken.append(Var(operands[e][o].aval))
        if isinstance(role, Closed) and isinstance(role.value, Literal):
            continue
        for e, o in places:
            operands[e][o] = taken[-1]
    equations = [unmarked(e.replace(invars=held)) for e, held in zip(run.body, operands, strict=True)]
    return jaxpr.replace(
        constvars=[], invars=taken, outvars=[_result(run, place) for place in results], eqns=equations
    )


def _firm(array: Any) -> Any:
    """Traced. Without a weak dtype, which a loop's state could lose on its way."""
    weak = getattr(getattr(array, "aval", None), "weak_type", False)
    return jax.lax.convert_element_type(array, array.dtype) if weak else array
