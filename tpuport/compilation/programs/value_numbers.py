"""Which values of two traced programs are the same: value numbering, as compilers do
it.

Each value has a number, by the operation that makes it and the numbers of its operands,
so that equal numbers mean that both programs compute the same thing, in whatever order
they were traced.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import ClosedJaxpr, Jaxpr

# Larger constants are compared by identity, and so are keys of random numbers.
_MOST_BYTES = 1 << 20
_WITH_DERIVATIVES = ("custom_jvp_call", "custom_vjp_call")


class ValueNumbers:
    """The numbers of the values of several programs.

    Attributes:
        operands: for each number, those of the values that it is computed of.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.operands: list[tuple[int, ...]] = []
        # What is compared by identity is kept, so that nothing else gets its id.
        self._kept: list[Any] = []

    def number_of(self, key: Hashable, operands: tuple[int, ...] = ()) -> int:
        """The number of the value with this key."""
        number = self._numbers.setdefault(key, len(self.operands))
        if number == len(self.operands):
            self.operands.append(operands)
        return number

    def outputs(
        self, program: ClosedJaxpr, inputs: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """The numbers of a program's results, and of its effects in order.

        Args:
            inputs: the number of each argument, but for the last ones if nothing reads
                them.
        """
        constants = list(map(self._constant, program.consts))
        return self._run(program.jaxpr, constants, list(inputs))

    def reachable(self, numbers: Sequence[int]) -> set[int]:
        """These values, and all that they are computed of."""
        seen: set[int] = set()
        pending = list(numbers)
        while pending:
            number = pending.pop()
            if number not in seen:
                seen.add(number)
                pending += self.operands[number]
        return seen

    def _run(
        self, jaxpr: Jaxpr, constants: list[int], inputs: list[int]
    ) -> tuple[list[int], list[int]]:
        values = dict(zip(jaxpr.constvars, constants, strict=True))
        values |= dict(zip(jaxpr.invars, inputs, strict=False))
        effects: list[int] = []

        def number_of(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self._constant(atom.val)
            return values[atom]

        for equation in jaxpr.eqns:
            operands = tuple(map(number_of, equation.invars))
            key = (equation.primitive, self._parameters(equation), operands)
            for index, variable in enumerate(equation.outvars):
                values[variable] = self.number_of((index, *key), operands)
            if equation.effects:
                # The same effect may happen several times.
                effects.append(self.number_of(("effect", len(effects), *key), operands))
        return list(map(number_of, jaxpr.outvars)), effects

    def _parameters(self, equation: Any) -> Hashable:
        # How to differentiate a call, by functions that each trace makes anew, is no
        # part of its value.
        only_bodies = equation.primitive.name in _WITH_DERIVATIVES
        by_text = equation.primitive.name == "pallas_call"
        return tuple(
            (name, self._key(value, by_text=by_text))
            for name, value in sorted(equation.params.items())
            if isinstance(value, Jaxpr | ClosedJaxpr) or not only_bodies
        )

    def _key(self, value: Any, *, by_text: bool) -> Hashable:
        match value:
            case ClosedJaxpr():
                return self._body(value.jaxpr, tuple(map(self._constant, value.consts)))
            case Jaxpr():
                return self._body(value, ())
            case tuple() | list():
                parts = (self._key(part, by_text=by_text) for part in value)
                return type(value), tuple(parts)
            case dict():
                return tuple(
                    (name, self._key(part, by_text=by_text))
                    for name, part in value.items()
                )
            case np.ndarray() | np.generic() | jax.Array():
                return self._constant(value)
        # Parameters of kernels have no equality of their own, and say what they are.
        if by_text and type(value).__eq__ is object.__eq__:
            text = repr(value)
            return self._identity(value) if " at 0x" in text else (type(value), text)
        try:
            hash(value)
        except TypeError:
            return self._identity(value)
        return type(value), value

    def _body(self, jaxpr: Jaxpr, constants: tuple[int, ...]) -> Hashable:
        """The key of a jaxpr inside of an equation: what it computes of its
        arguments.
        """
        # Arguments of nested bodies have numbers of their own, by place and form.
        inputs = [
            self.number_of(("argument", number, str(variable.aval)))
            for number, variable in enumerate(jaxpr.invars)
        ]
        names = [
            self.number_of(("constant", number, str(variable.aval)))
            for number, variable in enumerate(jaxpr.constvars)
        ]
        results = self._run(jaxpr, list(constants) or names, inputs)
        return "body", len(inputs), tuple(map(tuple, results))

    def _constant(self, value: Any) -> int:
        if isinstance(value, jax.Array) and not _is_small(value):
            return self.number_of(("array", self._identity(value)))
        array = np.asarray(value)
        key = (str(array.dtype), array.shape, array.tobytes())
        weak = bool(getattr(value, "weak_type", isinstance(value, int | float)))
        return self.number_of(("constant", weak, key))

    def _identity(self, value: Any) -> Hashable:
        self._kept.append(value)
        return id(value)


def _is_small(array: jax.Array) -> bool:
    """Whether the contents of an array can be compared."""
    is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.extended)
    return not is_key and array.is_fully_addressable and array.nbytes <= _MOST_BYTES
