"""Arguments of a traced program that come back changed: a part of them overwritten, or
something put at their end.

It is read off the traced program, whatever the arguments are called: a result is
followed back through operations that write into an array, or only move it, to the
argument that it was. Such are the caches of a decoding step.
"""

from typing import Any, Final, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr

from tpuport.compat.jaxprs import (
    Equation,
    SubJaxpr,
    argument_names,
    callee,
    lookup,
    producers,
    sub_jaxprs,
)

# They give back their first operand, in another form at most. Shapes and dtypes are
# compared at the ends.
_MOVING: Final = frozenset(
    "bitcast_convert_type broadcast_in_dim convert_element_type copy copy_p expand_dims layout_constraint name "
    "reduce_precision reshape sharding_constraint squeeze stop_gradient transpose".split()
)
_SCATTERS: Final = (
    "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub".split()
)
# They write into their first operand; and which operand is written.
_UPDATES: Final = {"dynamic_update_slice": 1, **dict.fromkeys(_SCATTERS, 2)}
# Keys or values have heads (or rows), positions and a head's dimension; tokens and
# counters have fewer dimensions.
_LEAST_DIMENSIONS: Final = 3
_WRITTEN: Final = frozenset({"written"})
_GROWN: Final = frozenset({"grown"})


class OverwrittenInput(NamedTuple):
    """An argument that comes back changed.

    Attributes:
        argument: its number; arguments are flat.
        output: the number of the result that it comes back as.
        name: as jax names it, "plain_arrays[3]".
        shape: of the argument.
        dtype: of the argument.
        growth: how much longer it comes back, along one dimension; 0 if a part of it
            was overwritten.
    """

    argument: int
    output: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    growth: int


class _Origin(NamedTuple):
    """What a variable was: an operand or an argument, and its changes since: `_WRITTEN`
    in part, `_GROWN`.
    """

    variable: Any
    changes: frozenset[str] = frozenset()


def find_overwritten(program: ClosedJaxpr) -> tuple[OverwrittenInput, ...]:
    """The arguments of three dimensions or more that come back so, in the order of the
    results.
    """
    jaxpr, names = program.jaxpr, argument_names(program)
    overwritten = []
    for output, variable in enumerate(jaxpr.outvars):
        origin = _argument_origin(jaxpr, variable)
        if origin is None:
            continue
        before, after = origin.variable.aval, variable.aval
        # Another dtype on the way is a computation in float32, another one at the end
        # is another array.
        if before.dtype != after.dtype or len(before.shape) < _LEAST_DIMENSIONS:
            continue
        growth = _growth(before.shape, after.shape)
        is_longer = origin.changes >= _GROWN and growth > 0
        is_overwritten = origin.changes == _WRITTEN and before.shape == after.shape
        if is_longer or is_overwritten:
            argument = jaxpr.invars.index(origin.variable)
            name = "".join(names[argument : argument + 1])
            overwritten.append(
                OverwrittenInput(
                    argument,
                    output,
                    name,
                    tuple(before.shape),
                    str(before.dtype),
                    growth,
                )
            )
    return tuple(overwritten)


def _growth(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """By how much one dimension grew; 0 if others differ too."""
    changes = [new - old for old, new in zip(before, after, strict=False) if new != old]
    if len(before) != len(after) or len(changes) != 1:
        return 0
    return max(changes[0], 0)


def _argument_origin(jaxpr: Jaxpr, variable: Any) -> _Origin | None:
    """The argument of a jaxpr that a variable was; None if it was computed."""
    makers = producers(jaxpr)
    origin = _Origin(variable)
    while (maker := lookup(makers, origin.variable)) is not None:
        before = _operand_origin(maker.equation, maker.output)
        if before is None:
            return None
        origin = _Origin(before.variable, before.changes | origin.changes)
    # No equation makes an argument, nor a constant.
    if origin.variable not in jaxpr.invars:
        return None
    return origin


def _operand_origin(equation: Equation, output: int) -> _Origin | None:
    """The operand that a result of an equation was; None if it was computed."""
    operands = equation.invars
    size = equation.outvars[output].aval.size
    match equation.primitive.name:
        case "optimization_barrier":
            # Each of its operands becomes a result.
            return _Origin(operands[output])
        case name if name in _MOVING:
            origin = _Origin(operands[0])
            comes_back = origin.variable.aval.size == size
        case name if name in _UPDATES:
            origin = _Origin(operands[0], _WRITTEN)
            # If all of it is overwritten, nothing of the argument comes back.
            comes_back = operands[_UPDATES[name]].aval.size < size
        case "concatenate":
            origin = _Origin(
                max(operands, key=lambda operand: operand.aval.size), _GROWN
            )
            # Two halves that are joined, such as those of rotary positions, are not a
            # cache that grows.
            comes_back = 2 * origin.variable.aval.size > size
        case _:
            return _inner_origin(equation, output)
    return origin if comes_back else None


def _inner_origin(equation: Equation, output: int) -> _Origin | None:
    """The operand that a result of a call, a loop or a conditional was."""
    called = callee(equation)
    if called is not None:
        return _origin_through(called, output)
    match equation.primitive.name:
        case "scan" | "while":
            # Of a while loop the condition comes first, then the body.
            return _origin_through(sub_jaxprs(equation)[-1], output)
        case "cond":
            return _common_origin(
                [_origin_through(branch, output) for branch in sub_jaxprs(equation)]
            )
    return None


def _origin_through(part: SubJaxpr, output: int) -> _Origin | None:
    """The operand behind the argument that a result of a jaxpr was."""
    origin = _argument_origin(part.jaxpr, part.jaxpr.outvars[output])
    if origin is None:
        return None
    argument = part.jaxpr.invars.index(origin.variable)
    if not _is_passed_on(part, argument, output):
        return None
    return origin._replace(variable=part.operands[argument])


def _is_passed_on(part: SubJaxpr, argument: int, output: int) -> bool:
    """Whether each round of a loop gives the next round's argument back, or one row of
    what was given row by row.
    """
    if output < len(part.carries):
        return argument == part.carries.start + output
    return part.kind != "scan" or argument in part.rows


def _common_origin(branches: list[_Origin | None]) -> _Origin | None:
    """The same operand in all branches; None if any of them has another or computes
    it.
    """
    origins = [origin for origin in branches if origin is not None]
    variables = {id(origin.variable) for origin in origins}  # literals cannot be hashed
    if len(origins) < len(branches) or len(variables) > 1:
        return None
    return _Origin(
        origins[0].variable, frozenset().union(*(origin.changes for origin in origins))
    )
