"""Arguments of a traced program that come back changed: a part of them overwritten, or something put at their end.

It is read off the traced program, whatever the arguments are called: a result is followed back through operations that
write into an array, or only move it, to the argument that it was. Such are the caches of a decoding step.
"""

from typing import Any, Final, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from tpuport.jaxprs import SubJaxpr, argument_names, callee, producers, sub_jaxprs

# A JaxprEqn. jax gives its variables the type AbstractValue, which has no shape and no dtype.
Equation = Any

# They give back their first operand, in another form at most. Shapes and dtypes are compared at the ends.
_MOVING: Final = frozenset(
    "bitcast_convert_type broadcast_in_dim convert_element_type copy copy_p expand_dims layout_constraint name "
    "optimization_barrier reduce_precision reshape sharding_constraint squeeze stop_gradient transpose".split()
)
# Keys or values have heads (or rows), positions and a head's dimension; tokens and counters have fewer dimensions.
_LEAST_DIMENSIONS: Final = 3


class OverwrittenInput(NamedTuple):
    """An argument that comes back changed.

    Attributes:
        argument: its number; arguments are flat.
        output: the number of the result that it comes back as.
        name: as jax names it, "plain_arrays[3]".
        shape: of the argument.
        dtype: of the argument.
        growth: how much longer it comes back, along one dimension; 0 if a part of it was overwritten.
    """

    argument: int
    output: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    growth: int


class _Origin(NamedTuple):
    """What a variable was: an operand or an argument, and whether a part was overwritten or it has grown."""

    variable: Any
    is_written: bool = False
    is_grown: bool = False

    def after(self, later: "_Origin") -> "_Origin":
        """This origin of what `later` comes from."""
        return _Origin(self.variable, self.is_written or later.is_written, self.is_grown or later.is_grown)


def find_overwritten(program: ClosedJaxpr) -> tuple[OverwrittenInput, ...]:
    """The arguments of three dimensions or more that come back so, in the order of the results."""
    jaxpr, names = program.jaxpr, argument_names(program)
    overwritten = []
    for output, variable in enumerate(jaxpr.outvars):
        origin = _argument_origin(jaxpr, variable)
        if origin is None:
            continue
        argument = jaxpr.invars.index(origin.variable)
        before, after = origin.variable.aval, variable.aval
        growth = 0
        if origin.is_grown:
            growth = _growth(before.shape, after.shape)
        is_overwritten = origin.is_written and not origin.is_grown and before.shape == after.shape
        # Another dtype on the way is a computation in float32, another one at the end is another array.
        if before.dtype != after.dtype or len(before.shape) < _LEAST_DIMENSIONS:
            continue
        if is_overwritten or growth > 0:
            name = "".join(names[argument : argument + 1])
            overwritten.append(
                OverwrittenInput(argument, output, name, tuple(before.shape), str(before.dtype), growth)
            )
    return tuple(overwritten)


def _growth(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """By how much one dimension grew; 0 if others differ too."""
    if len(before) != len(after):
        return 0
    changes = [new - old for old, new in zip(before, after, strict=True) if new != old]
    return max(changes[0], 0) if len(changes) == 1 else 0


def _argument_origin(jaxpr: Jaxpr, variable: Any) -> _Origin | None:
    """The argument of a jaxpr that a variable was; None if it was computed."""
    arguments, makers = set(jaxpr.invars), producers(jaxpr)
    origin = _Origin(variable)
    while not isinstance(origin.variable, Literal):
        if origin.variable in arguments:
            return origin
        maker = makers.get(origin.variable)
        before = None if maker is None else _operand_origin(maker.equation, maker.output)
        if before is None:
            return None
        origin = before.after(origin)
    return None


def _operand_origin(equation: Equation, output: int) -> _Origin | None:
    """The operand that a result of an equation was; None if it was computed."""
    name, operands = equation.primitive.name, equation.invars
    if name in _MOVING:
        operand = operands[output if name == "optimization_barrier" else 0]
        is_same_size = operand.aval.size == equation.outvars[output].aval.size
        return _Origin(operand) if is_same_size else None
    if name == "dynamic_update_slice" or name.startswith("scatter"):
        update = operands[1 if name == "dynamic_update_slice" else 2]
        # If all of it is overwritten, nothing of the argument comes back.
        is_part = update.aval.size < operands[0].aval.size
        return _Origin(operands[0], is_written=True) if is_part else None
    if name == "concatenate":
        longest = max(operands, key=lambda operand: operand.aval.size)
        # Two halves that are joined, such as those of rotary positions, are not a cache that grows.
        is_most = 2 * longest.aval.size > equation.outvars[0].aval.size
        return _Origin(longest, is_grown=True) if is_most else None
    return _inner_origin(equation, output)


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
            return _common_origin([_origin_through(branch, output) for branch in sub_jaxprs(equation)])
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
    """Whether each round of a loop gives the next round's argument back, or one row of what was given row by row."""
    if output < len(part.carries):
        return argument == part.carries.start + output
    return part.kind != "scan" or argument in part.rows


def _common_origin(branches: list[_Origin | None]) -> _Origin | None:
    """The same operand in all branches; None if any of them has another or computes it."""
    origins = [origin for origin in branches if origin is not None]
    if len(origins) < len(branches) or any(origin.variable is not origins[0].variable for origin in origins):
        return None
    return _Origin(
        origins[0].variable,
        any(origin.is_written for origin in origins),
        any(origin.is_grown for origin in origins),
    )
