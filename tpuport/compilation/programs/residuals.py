"""What a backward pass reads of its forward pass: values that are cheap to compute
again are not kept.

A transposed weight, a mask, a product with a table: autograd keeps each of them, as in
torch, where a view costs nothing. Here each would be an array that the forward pass
writes. So the equations that only rearrange elements, or compute each element by
itself, move into the backward pass, as far as what they read is there anyway: an input
of the program, or another residual.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from tpuport.compat.jaxprs import Equation, callee, producers

_REARRANGE: Final = frozenset({
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "expand_dims", "iota", "pad", "reshape", "rev",
    "slice", "squeeze", "transpose",
})  # fmt: skip
_ELEMENTWISE: Final = frozenset({
    "abs", "add", "and", "bitcast_convert_type", "ceil", "clamp", "cos", "div", "eq", "erf", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "ne", "neg", "not", "or", "real", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin",
    "sqrt", "square", "stop_gradient", "sub", "tanh", "xor",
})  # fmt: skip
_CHEAP: Final = _REARRANGE | _ELEMENTWISE
# Equations between a residual and what it is computed of.
_MOST_EQUATIONS: Final = 64


class Residuals(NamedTuple):
    """What moves into the backward pass.

    Attributes:
        kept: variables of the forward pass that the backward pass reads.
        program: of the backward pass, which takes these first.
    """

    kept: tuple[Any, ...]
    program: ClosedJaxpr


def recompute(
    forward: Jaxpr, residuals: Sequence[Any], backward: ClosedJaxpr
) -> Residuals:
    """Move what is cheap from a forward pass into its backward pass.

    Args:
        forward: without constants.
        residuals: variables of it, the first inputs of `backward`.
    """
    made = producers(forward)
    order = {id(equation): number for number, equation in enumerate(forward.eqns)}
    inputs = set(forward.invars)
    # A variable may be read in several places.
    kept = dict.fromkeys(residuals)
    moved: dict[int, Equation] = {}

    def place(variable: Any) -> int:
        return order[id(made[variable].equation)] if variable in made else -1

    # The latest first: what it is computed of may be computed itself.
    for variable in sorted(kept, key=place, reverse=True):
        if variable in inputs:
            continue
        available = inputs | (kept.keys() - {variable})
        equations = _equations_of(variable, available, made)
        if equations is not None:
            moved |= {order[id(equation)]: equation for equation in equations}
            del kept[variable]
    equations = [moved[number] for number in sorted(moved)]
    outputs = {output for equation in equations for output in equation.outvars}
    read = {
        atom
        for equation in equations
        for atom in equation.invars
        if not isinstance(atom, Literal)
    }
    wanted = [
        *(variable for variable in kept if variable not in outputs),
        *(
            variable
            for variable in forward.invars
            if variable in read and variable not in kept
        ),
    ]
    return Residuals(tuple(wanted), _joined(backward, residuals, wanted, equations))


def _equations_of(
    variable: Any, available: set[Any], made: Mapping[Any, Any]
) -> list[Equation] | None:
    """The cheap equations that compute a variable from others; None if there are
    none.
    """
    found: dict[int, Equation] = {}
    waiting = [variable]
    while waiting:
        current = waiting.pop()
        if current in available:
            continue
        if current not in made or len(found) > _MOST_EQUATIONS:
            return None
        equation = made[current].equation
        if not _is_cheap(equation):
            return None
        if id(equation) not in found:
            found[id(equation)] = equation
            waiting += [
                atom for atom in equation.invars if not isinstance(atom, Literal)
            ]
    return list(found.values())


def _is_cheap(equation: Equation) -> bool:
    if equation.effects:
        return False
    called = callee(equation)
    if called is not None:
        return not called.consts and all(map(_is_cheap, called.jaxpr.eqns))
    return equation.primitive.name in _CHEAP


def _joined(
    backward: ClosedJaxpr,
    residuals: Sequence[Any],
    wanted: Sequence[Any],
    equations: Iterable[Equation],
) -> ClosedJaxpr:
    """The backward pass that computes some of its residuals first."""
    body = backward.jaxpr
    names: dict[Any, Any] = {}
    again: dict[Any, Any] = {}
    for variable, own in zip(residuals, body.invars, strict=False):
        again[own] = names.setdefault(variable, own)

    def renamed(atom: Any, table: Mapping[Any, Any]) -> Any:
        return atom if isinstance(atom, Literal) else table.get(atom, atom)

    def with_names(equation: Equation, table: Mapping[Any, Any]) -> Equation:
        return equation.replace(
            invars=[renamed(atom, table) for atom in equation.invars],
            outvars=[renamed(atom, table) for atom in equation.outvars],
        )

    first = len(residuals)
    return ClosedJaxpr(
        body.replace(
            invars=[*(names.get(part, part) for part in wanted), *body.invars[first:]],
            outvars=[renamed(atom, again) for atom in body.outvars],
            eqns=[
                *(with_names(equation, names) for equation in equations),
                *(with_names(equation, again) for equation in body.eqns),
            ],
        ),
        backward.consts,
    )
