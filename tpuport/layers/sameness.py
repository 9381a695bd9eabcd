"""Whether two pieces of a traced program do the same, and where they differ first."""

import dataclasses
import functools
import types
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal, Var

# What equations hold beside what they compute: how it is differentiated, which programs here are not, and names.
_NOT_COMPUTED = {
    "custom_jvp_call": frozenset({"jvp_jaxpr_fun", "symbolic_zeros"}),
    "custom_vjp_call": frozenset({"fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros"}),
    "jit": frozenset({"name"}),
}
# Constants of more bytes than this are equal only if they are one array.
_COMPARED = 1 << 20
_DEPTH = 12


def same_aval(one: Any, other: Any) -> bool:
    """Whether two values are arrays of one shape, dtype and layout in a mesh whose axes are explicit or manual.

    How firmly they hold to their dtype does not count, nor which mesh they are on where the compiler lays them out.
    """
    return one is other or _form(one) == _form(other)


def _form(aval: Any) -> Any:
    if not hasattr(aval, "sharding"):
        return aval
    return (
        aval.shape,
        aval.dtype,
        aval.sharding.spec,
        aval.memory_space,
        getattr(aval, "manual_axis_type", None),
    )


def same_literal(one: Literal, other: Literal) -> bool:
    """Whether two literals are one value of one type."""
    return same_aval(one.aval, other.aval) and _same_array(np.asarray(one.val), np.asarray(other.val))


def _same_array(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, Tracer) or isinstance(other, Tracer):
        return False
    if one.shape != other.shape or one.dtype != other.dtype or one.nbytes > _COMPARED:
        return False
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first place where two pieces differ: the equation's number, and what is different there."""

    number: int
    what: str


class _Pairs:
    """Which variable of one piece stands for which of the other.

    Args:
        loose: whether variables from outside of the pieces, and literals, may stand for one another.
    """

    def __init__(self, loose: bool) -> None:
        self._loose = loose
        self._there: dict[Var, Var] = {}
        self._back: dict[Var, Var] = {}

    def add(self, ones: Sequence[Var], others: Sequence[Var]) -> None:
        self._there.update(zip(ones, others, strict=True))
        self._back.update(zip(others, ones, strict=True))

    def hold(self, one: Any, other: Any) -> bool:
        literals = isinstance(one, Literal), isinstance(other, Literal)
        if all(literals) and not self._loose:
            return same_literal(one, other)
        if (not literals[0] and one in self._there) or (not literals[1] and other in self._back):
            return not any(literals) and self._there.get(one) is other
        return self._loose and same_aval(one.aval, other.aval)


class Comparison:
    """Comparisons of equations, each pair of nested programs compared once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one that was compared

    def difference(self, ones: Sequence[JaxprEqn], others: Sequence[JaxprEqn]) -> Difference | None:
        """Where the second piece stops doing what the first does; None where it does the same to the end.

        What both take from outside may be different arrays of one shape and dtype, or different literals.
        """
        if len(ones) != len(others):
            count = min(len(ones), len(others))
            early = self.difference(ones[:count], others[:count])
            return early or Difference(count, f"{len(ones)} equations in one, {len(others)} in the other")
        pairs = _Pairs(loose=True)
        for number, (one, other) in enumerate(zip(ones, others, strict=True)):
            what = self._equation(one, other, pairs)
            if what is not None:
                return Difference(number, what)
            pairs.add(one.outvars, other.outvars)
        return None

    def _equation(self, one: JaxprEqn, other: JaxprEqn, pairs: _Pairs) -> str | None:
        if one.primitive is not other.primitive:
            return f"{one.primitive} in one, {other.primitive} in the other"
        if len(one.invars) != len(other.invars) or len(one.outvars) != len(other.outvars):
            return f"{one.primitive} with other numbers of operands or results"
        for a, b in zip(one.invars, other.invars, strict=True):
            if not pairs.hold(a, b):
                return f"{one.primitive} of other operands: {_shown(a)} in one, {_shown(b)} in the other"
        for a, b in zip(one.outvars, other.outvars, strict=True):
            if not same_aval(a.aval, b.aval):
                return f"{one.primitive} gives {a.aval} in one, {b.aval} in the other"
        if one.ctx is not other.ctx:
            return f"{one.primitive} in another context of jax"
        return self._params(one, other)

    def _params(self, one: JaxprEqn, other: JaxprEqn) -> str | None:
        if one.params.keys() != other.params.keys():
            return f"{one.primitive} with other parameters"
        beside = _NOT_COMPUTED.get(one.primitive.name, ())
        for name, value in one.params.items():
            if name not in beside and not self.equal(value, other.params[name]):
                return f"{one.primitive} with {name}={value!s:.60} in one, {other.params[name]!s:.60} in the other"
        return None

    def equal(self, one: Any, other: Any, depth: int = 0) -> bool:
        """Whether two parameters of an equation surely mean the same."""
        if one is other:
            return True
        if type(one) is not type(other) or depth > _DEPTH:
            return False
        if isinstance(one, Jaxpr | ClosedJaxpr):
            key = id(one), id(other)
            if key not in self._known:
                self._kept += [one, other]
                self._known[key] = self._programs(one, other)
            return self._known[key]
        return self._values(one, other, depth + 1)

    def _values(self, one: Any, other: Any, depth: int) -> bool:
        if isinstance(one, DebugInfo):
            return True
        if isinstance(one, dict):
            return list(one) == list(other) and all(self.equal(one[k], other[k], depth) for k in one)
        if isinstance(one, list | tuple):
            return self._all(one, other, depth)
        if isinstance(one, np.ndarray | np.generic | jax.Array):
            return _same_array(one, other)
        if isinstance(one, types.FunctionType):
            return self._functions(one, other, depth)
        if isinstance(one, functools.partial | types.MethodType):
            return self._all(_held(one), _held(other), depth)
        if dataclasses.is_dataclass(one):
            names = [field.name for field in dataclasses.fields(one)]
            return self._all([getattr(one, n) for n in names], [getattr(other, n) for n in names], depth)
        return _equal(one, other)

    def _all(self, ones: Sequence[Any], others: Sequence[Any], depth: int) -> bool:
        return len(ones) == len(others) and all(
            self.equal(a, b, depth) for a, b in zip(ones, others, strict=True)
        )

    def _functions(self, one: Any, other: Any, depth: int) -> bool:
        if one.__code__ is not other.__code__ or one.__globals__ is not other.__globals__:
            return False
        try:
            held, there = ([cell.cell_contents for cell in x.__closure__ or ()] for x in (one, other))
        except ValueError:  # a cell to which nothing has been assigned yet
            return False
        given = [(function.__defaults__, function.__kwdefaults__) for function in (one, other)]
        return self._all(held, there, depth) and self.equal(given[0], given[1], depth)

    def _programs(self, one: Any, other: Any) -> bool:
        if isinstance(one, ClosedJaxpr):
            return self._all(one.consts, other.consts, 0) and self.equal(one.jaxpr, other.jaxpr)
        ones, others = [*one.constvars, *one.invars], [*other.constvars, *other.invars]
        if len(one.eqns) != len(other.eqns) or [len(x) for x in (one.constvars, one.invars, one.outvars)] != [
            len(x) for x in (other.constvars, other.invars, other.outvars)
        ]:
            return False
        pairs = _Pairs(loose=False)
        pairs.add(ones, others)
        if not all(same_aval(a.aval, b.aval) for a, b in zip(ones, others, strict=True)):
            return False
        for a, b in zip(one.eqns, other.eqns, strict=True):
            if self._equation(a, b, pairs) is not None:
                return False
            pairs.add(a.outvars, b.outvars)
        return all(pairs.hold(a, b) for a, b in zip(one.outvars, other.outvars, strict=True))


def _held(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    return [value.__self__, value.__func__]


def _equal(one: Any, other: Any) -> bool:
    """By the type's own comparison where it has one; without, no two objects are the same."""
    if type(one).__eq__ is object.__eq__:
        return False
    try:
        return bool(one == other)
    except (TypeError, ValueError):
        return False


def _shown(operand: Any) -> str:
    return f"{operand.val!s:.40}" if isinstance(operand, Literal) else str(operand.aval)
