"""The equations of a traced program, those of loops and nested calls too, and how often each runs."""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import jax


class Equation(NamedTuple):
    """One operation as it was traced.

    Attributes:
        primitive: its name, "dot_general".
        inputs, outputs: shapes and dtypes; what has none is left out.
        params: of the primitive.
        times: that it runs, by the lengths of the loops around it.
        files: of the Python frames that it was traced from, the innermost first.
    """

    primitive: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    params: dict[str, Any]
    times: int
    traceback: Any

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(frame.file_name for frame in getattr(self.traceback, "frames", ()))

    @property
    def flops(self) -> float:
        """Of a product of matrices: two for each multiplication, each time that it runs; else 0."""
        if self.primitive != "dot_general":
            return 0.0
        (contracted, _), _ = self.params["dimension_numbers"]
        inner = prod(self.inputs[0].shape[axis] for axis in contracted)
        return 2.0 * prod(self.outputs[0].shape) * inner * self.times


def equations(jaxpr: Any, times: int = 1) -> Iterator[Equation]:
    """Every equation of a jaxpr, outer ones before those inside them; branches and conditions each once."""
    for one in jaxpr.eqns:
        if one.primitive.name == "pallas_call":
            continue  # what a kernel does stays in it
        yield Equation(
            one.primitive.name, _avals(one.invars), _avals(one.outvars), one.params, times,
            one.source_info.traceback,
        )  # fmt: skip
        inner = times * int(one.params.get("length") or 1) if one.primitive.name == "scan" else times
        for nested in _nested(one.params):
            yield from equations(nested, inner)


def _avals(variables: Any) -> tuple[Any, ...]:
    return tuple(variable.aval for variable in variables if hasattr(variable.aval, "shape"))


def _nested(params: dict[str, Any]) -> Iterator[Any]:
    """Jaxprs among a primitive's parameters."""
    for value in jax.tree.leaves(list(params.values()), is_leaf=_is_jaxpr):
        if _is_jaxpr(value):
            yield getattr(value, "jaxpr", value)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")
