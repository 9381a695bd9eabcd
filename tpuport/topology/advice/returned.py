"""Arguments of a traced program that come back changed: a part of them overwritten, or something put at their end.

It is read off the traced program, whatever the arguments are called: an output is followed back through operations that
write into an array, or only move it, to the argument that it was. Such are the caches of a decoding step.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

# What gives back its first operand, in another form at most. Shapes and dtypes are compared at the ends.
_MOVING: Final = frozenset(
    "bitcast_convert_type broadcast_in_dim convert_element_type copy copy_p expand_dims layout_constraint name "
    "optimization_barrier reduce_precision reshape sharding_constraint squeeze stop_gradient transpose".split()
)
# Keys or values have heads (or rows), positions and a head's dimension; tokens and counters have fewer.
_AXES: Final = 3


class Returned(NamedTuple):
    """An argument that comes back changed.

    Attributes:
        argument, output: their numbers, arguments and outputs being flat.
        name: of the argument, as jax names it: "tensors[3]".
        shape, dtype: of the argument.
        grown: how much longer it comes back, along one dimension; 0 where a part of it was overwritten.
    """

    argument: int
    output: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    grown: int


class _Step(NamedTuple):
    """What an output of an equation is: one of its operands, overwritten in part or longer."""

    operand: Any
    written: bool = False
    grown: bool = False


def returned(closed: Any) -> tuple[Returned, ...]:
    """The arguments of three dimensions or more that come back so, in the order of the outputs."""
    jaxpr, found = closed.jaxpr, []
    told = getattr(jaxpr.debug_info, "arg_names", None) or ()
    for output, variable in enumerate(jaxpr.outvars):
        origin = _origin(jaxpr, variable)
        if origin is None:
            continue
        argument, written, grown = origin
        before, after = jaxpr.invars[argument].aval, variable.aval
        longer = _longer(before.shape, after.shape) if grown else 0
        is_kept = longer > 0 if grown else written and before.shape == after.shape
        if is_kept and before.dtype == after.dtype and len(before.shape) >= _AXES:
            name = told[argument] if argument < len(told) else ""
            found.append(
                Returned(argument, output, str(name), tuple(before.shape), str(before.dtype), longer)
            )
    return tuple(found)


def _longer(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """By how much one dimension grew; 0 where the others differ too."""
    changed = [new - old for old, new in zip(before, after, strict=False) if new != old]
    return max(changed[0], 0) if len(before) == len(after) and len(changed) == 1 else 0


def _origin(jaxpr: Any, variable: Any) -> tuple[int, bool, bool] | None:
    """(the argument of a jaxpr that a variable is, whether a part was overwritten, whether it has grown)."""
    places = {one: number for number, one in enumerate(jaxpr.invars)}
    makers = {made: one for one in jaxpr.eqns for made in one.outvars}
    written = grown = False
    while not hasattr(variable, "val"):  # a literal is no argument
        if variable in places:
            return places[variable], written, grown
        equation = makers.get(variable)
        step = None if equation is None else _step(equation, equation.outvars.index(variable))
        if step is None:
            return None
        variable, written, grown = step.operand, written or step.written, grown or step.grown
    return None


def _step(equation: Any, place: int) -> _Step | None:
    """One operation back, from its result number `place`; None where that is computed."""
    name, operands = equation.primitive.name, equation.invars
    if name in _MOVING:
        operand = operands[place if name == "optimization_barrier" else 0]
        return _Step(operand) if _size(operand) == _size(equation.outvars[place]) else None
    if name == "dynamic_update_slice" or name.startswith("scatter"):
        update = operands[1] if name == "dynamic_update_slice" else operands[2]
        return _Step(operands[0], written=True) if _size(update) < _size(operands[0]) else None
    if name == "concatenate":
        longest = max(operands, key=_size)
        return _Step(longest, grown=True) if 2 * _size(longest) > _size(equation.outvars[0]) else None
    inside = _INSIDE.get(name, _called)
    return inside(equation, place)


def _size(variable: Any) -> int:
    return int(getattr(variable.aval, "size", 0))


def _called(equation: Any, place: int) -> _Step | None:
    """Of a nested call, whose operands are its jaxpr's arguments."""
    for value in equation.params.values():
        jaxpr = getattr(value, "jaxpr", value)
        if hasattr(jaxpr, "eqns") and len(jaxpr.invars) == len(equation.invars):
            return _inner(equation, jaxpr, place, lambda number: number)
    return None


def _inner(equation: Any, jaxpr: Any, place: int, operand: Callable[[int], int | None]) -> _Step | None:
    """Of a jaxpr's output, if the operand that its argument stands for is told."""
    origin = _origin(jaxpr, jaxpr.outvars[place]) if place < len(jaxpr.outvars) else None
    number = None if origin is None else operand(origin[0])
    if origin is None or number is None or not 0 <= number < len(equation.invars):
        return None
    return _Step(equation.invars[number], origin[1], origin[2])


def _scan(equation: Any, place: int) -> _Step | None:
    """A carry is the same carry, or what is stacked comes from what was stacked, row by row."""
    jaxpr = equation.params["jaxpr"].jaxpr
    first, carries = equation.params["num_consts"], equation.params["num_carry"]

    def operand(number: int) -> int | None:
        if place < carries:
            return number if number == first + place else None
        return number if number >= first + carries else None

    return _inner(equation, jaxpr, place, operand)


def _while(equation: Any, place: int) -> _Step | None:
    jaxpr = equation.params["body_jaxpr"].jaxpr
    first, before = equation.params["body_nconsts"], equation.params["cond_nconsts"]
    return _inner(equation, jaxpr, place, lambda number: before + number if number == first + place else None)


def _cond(equation: Any, place: int) -> _Step | None:
    """The same operand in all branches."""
    steps = [
        _inner(equation, getattr(one, "jaxpr", one), place, lambda number: number + 1)
        for one in equation.params["branches"]
    ]
    known = [one for one in steps if one is not None]
    if not known or len(known) < len(steps) or any(one.operand is not known[0].operand for one in known):
        return None
    return _Step(known[0].operand, any(one.written for one in known), any(one.grown for one in known))


_INSIDE: Final = {"scan": _scan, "while": _while, "cond": _cond}
