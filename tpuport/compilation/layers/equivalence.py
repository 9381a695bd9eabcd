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

from tpuport.base.plurals import count_noun
from tpuport.compat.jaxprs import open_jaxpr

# Parameters of equations that do not say what is computed: derivatives, which no
# program here has, and names.
_NOT_COMPUTED = {
    "custom_jvp_call": frozenset({"jvp_jaxpr_fun", "symbolic_zeros"}),
    "custom_vjp_call": frozenset(
        {"fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros"}
    ),
    "jit": frozenset({"name"}),
}
# Larger constants are equal only if they are one array; to compare their bytes would
# take too long.
_MAX_COMPARED_BYTES = 1 << 20
# Parameters nested deeper than this count as different, which costs a scan and never a
# wrong result.
_MAX_DEPTH = 12


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference of two pieces: the index of the equation, and a
    description.
    """

    index: int
    description: str


def is_same_aval(left: Any, right: Any) -> bool:
    """Whether two values are arrays of one shape, dtype and layout in a mesh whose axes
    are explicit or manual.

    Whether a dtype is weak does not count, nor which mesh they are on if the compiler
    lays them out.
    """
    return left is right or _aval_key(left) == _aval_key(right)


def _aval_key(aval: Any) -> Any:
    if not hasattr(aval, "sharding"):
        return aval
    manual_axes = getattr(aval, "manual_axis_type", None)
    return aval.shape, aval.dtype, aval.sharding.spec, aval.memory_space, manual_axes


def is_same_literal(left: Any, right: Any) -> bool:
    """Whether two operands are literals of one value and one type."""
    if not isinstance(left, Literal) or not isinstance(right, Literal):
        return False
    return is_same_aval(left.aval, right.aval) and _is_same_array(
        np.asarray(left.val), np.asarray(right.val)
    )


def _is_same_array(left: Any, right: Any) -> bool:
    """Bit for bit."""
    if isinstance(left, Tracer) or isinstance(right, Tracer):
        return False
    if (left.shape, left.dtype) != (
        right.shape,
        right.dtype,
    ) or left.nbytes > _MAX_COMPARED_BYTES:
        return False
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()


class _Pairs:
    """Which variable of the left piece corresponds to which of the right.

    Args:
        is_open: whether variables from outside of the pieces correspond if they have
            one aval, and so do literals.
    """

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open
        # By id, because literals, which never have a partner, cannot be hashed.
        self._to_right: dict[int, Var] = {}
        self._to_left: dict[int, Var] = {}

    def add(self, left: Sequence[Var], right: Sequence[Var]) -> None:
        self._to_right.update(zip(map(id, left), right, strict=True))
        self._to_left.update(zip(map(id, right), left, strict=True))

    def match(self, left: Any, right: Any) -> bool:
        """Whether two operands correspond."""
        # What one piece makes itself has to be the counterpart of what the other makes.
        if id(left) in self._to_right or id(right) in self._to_left:
            return self._to_right.get(id(left)) is right
        if self._is_open:
            return is_same_aval(left.aval, right.aval)
        return is_same_literal(left, right)


class Comparison:
    """Comparisons of equations; each pair of nested programs is compared only once."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], bool] = {}
        self._compared: list[
            Any
        ] = []  # so that no other object gets the id of one that was compared

    def first_difference(
        self, left: Sequence[JaxprEqn], right: Sequence[JaxprEqn]
    ) -> Difference | None:
        """Where the right piece stops doing what the left does; None if they do the
        same.

        What both take from outside may be different arrays of one shape and dtype, or
        different literals.
        """
        return self._first_difference(left, right, _Pairs(is_open=True))

    def _first_difference(
        self, left: Sequence[JaxprEqn], right: Sequence[JaxprEqn], pairs: _Pairs
    ) -> Difference | None:
        for index, (left_equation, right_equation) in enumerate(
            zip(left, right, strict=False)
        ):
            description = self._compare_equations(left_equation, right_equation, pairs)
            if description is not None:
                return Difference(index, description)
            pairs.add(left_equation.outvars, right_equation.outvars)
        if len(left) != len(right):
            description = (
                f"{count_noun(len(left), 'equation')} in one, {len(right)} in the other"
            )
            return Difference(min(len(left), len(right)), description)
        return None

    def _compare_equations(
        self, left: JaxprEqn, right: JaxprEqn, pairs: _Pairs
    ) -> str | None:
        """How two equations differ."""
        name = left.primitive
        if name is not right.primitive:
            return f"{name} in one, {right.primitive} in the other"
        counts = len(left.invars), len(left.outvars)
        if counts != (len(right.invars), len(right.outvars)):
            return f"{name} with other numbers of operands or results"
        for a, b in zip(left.invars, right.invars, strict=True):
            if not pairs.match(a, b):
                return f"{name} of other operands: {_operand_text(a)} in one, {_operand_text(b)} in the other"
        for a, b in zip(left.outvars, right.outvars, strict=True):
            if not is_same_aval(a.aval, b.aval):
                return f"{name} gives {a.aval} in one, {b.aval} in the other"
        # A context decides where and how precisely an equation is computed.
        if left.ctx != right.ctx:
            return f"{name} in another context of jax"
        return self._compare_params(left, right)

    def _compare_params(self, left: JaxprEqn, right: JaxprEqn) -> str | None:
        name = left.primitive
        if left.params.keys() != right.params.keys():
            return f"{name} with other parameters"
        ignored = _NOT_COMPUTED.get(name.name, frozenset())
        for key, left_value in left.params.items():
            right_value = right.params[key]
            if key not in ignored and not self.is_equal(left_value, right_value):
                return f"{name} with {key}={left_value!s:.60} in one, {right_value!s:.60} in the other"
        return None

    def is_equal(self, left: Any, right: Any, depth: int = 0) -> bool:
        """Whether two parameters of an equation surely mean the same."""
        if left is right:
            return True
        if type(left) is not type(right) or depth > _MAX_DEPTH:
            return False
        match left:
            case Jaxpr() | ClosedJaxpr():
                return self._is_equal_program(left, right)
            case DebugInfo():
                return True
            case dict():
                return self._all_equal(
                    [*left, *left.values()], [*right, *right.values()], depth
                )
            case list() | tuple():
                return self._all_equal(left, right, depth)
            case np.ndarray() | np.generic() | jax.Array():
                return _is_same_array(left, right)
            case types.FunctionType():
                return self._is_equal_function(left, right, depth)
        left_parts = _parts(left)
        if not left_parts:
            return _is_equal_object(left, right)
        return self._all_equal(left_parts, _parts(right), depth)

    def _all_equal(self, left: Sequence[Any], right: Sequence[Any], depth: int) -> bool:
        if len(left) != len(right):
            return False
        return all(
            self.is_equal(a, b, depth + 1) for a, b in zip(left, right, strict=True)
        )

    def _is_equal_function(self, left: Any, right: Any, depth: int) -> bool:
        # One piece of code, run twice, makes functions that differ in their closures at
        # most.
        if (
            left.__code__ is not right.__code__
            or left.__globals__ is not right.__globals__
        ):
            return False
        try:
            left_values, right_values = _function_values(left), _function_values(right)
        except ValueError:  # nothing has been assigned to a cell yet
            return False
        return self._all_equal(left_values, right_values, depth)

    def _is_equal_program(self, left: Any, right: Any) -> bool:
        key = (id(left), id(right))
        if key not in self._results:
            self._compared += [left, right]
            # The constants come first: they differ more often than the equations, and
            # are fewer. Since jax 0.12 one class has both.
            self._results[key] = self._all_equal(
                getattr(left, "consts", ()), getattr(right, "consts", ()), 0
            ) and self._is_equal_body(left, right)
        return self._results[key]

    def _is_equal_body(self, left: Any, right: Any) -> bool:
        body, other = open_jaxpr(left), open_jaxpr(right)
        if body is left:
            return self._is_equal_jaxpr(left, right)
        return self._is_equal_program(body, other)

    def _is_equal_jaxpr(self, left: Jaxpr, right: Jaxpr) -> bool:
        if _jaxpr_sizes(left) != _jaxpr_sizes(right):
            return False
        left_arguments, right_arguments = (
            [*left.constvars, *left.invars],
            [*right.constvars, *right.invars],
        )
        if not all(
            is_same_aval(a.aval, b.aval)
            for a, b in zip(left_arguments, right_arguments, strict=True)
        ):
            return False
        pairs = _Pairs(is_open=False)
        pairs.add(left_arguments, right_arguments)
        same_equations = self._first_difference(left.eqns, right.eqns, pairs) is None
        return same_equations and all(map(pairs.match, left.outvars, right.outvars))


def _parts(value: Any) -> list[Any]:
    """What decides whether a value equals another of its type; nothing if it is not
    made of parts.
    """
    match value:
        case functools.partial():
            return [value.func, value.args, value.keywords]
        case types.MethodType():
            return [value.__self__, value.__func__]
        case _ if dataclasses.is_dataclass(value):
            return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return []


def _function_values(function: types.FunctionType) -> list[Any]:
    """What decides about the result of a function beside its code: defaults, and what
    it closes over.
    """
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [function.__defaults__, function.__kwdefaults__, *cells]


def _jaxpr_sizes(jaxpr: Jaxpr) -> tuple[int, ...]:
    return tuple(map(len, (jaxpr.eqns, jaxpr.constvars, jaxpr.invars, jaxpr.outvars)))


def _is_equal_object(left: Any, right: Any) -> bool:
    """By the type's own comparison; two objects of a type that has none are never the
    same.
    """
    if type(left).__eq__ is object.__eq__:
        return False
    try:
        return bool(left == right)
    except (TypeError, ValueError):  # the result of a comparison may be an array
        return False


def _operand_text(operand: Any) -> str:
    return f"{operand.val!s:.40}" if isinstance(operand, Literal) else str(operand.aval)
