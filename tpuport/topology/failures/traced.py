"""The largest arrays of a traced program: what is known of one for which the compiler lists nothing."""

from collections.abc import Iterator
from math import prod
from typing import Any, Final

import jax

from tpuport.topology.compile_report import Buffer, Source
from tpuport.topology.hlo import innermost_source

_LISTED: Final = 12


def largest(jaxpr: Any) -> tuple[Buffer, ...]:
    """Arrays that the equations of a jaxpr make, whole (all devices' together) and without padding, largest first.

    Those of one line, shape and operation are together. The compiler fuses many of them away.
    """
    found: dict[tuple[str, int, str, Source | None], int] = {}
    for one in _equations(jaxpr):
        for variable in one.outvars:
            shape, dtype = getattr(variable.aval, "shape", None), getattr(variable.aval, "dtype", None)
            if shape is None or dtype is None or not hasattr(dtype, "itemsize"):  # keys have none
                continue
            name = variable.aval.str_short(short_dtypes=True)
            key = name, prod(shape) * dtype.itemsize, one.primitive.name, _source(one)
            found[key] = found.get(key, 0) + 1
    made = [Buffer(name, size, kind, count, source) for (name, size, kind, source), count in found.items()]
    return tuple(sorted(made, key=lambda one: -one.nbytes)[:_LISTED])


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The innermost: a loop or a call gives only what is made inside."""
    for one in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inside = [
            value
            for value in jax.tree.leaves(list(one.params.values()), is_leaf=_is_jaxpr)
            if _is_jaxpr(value)
        ]
        if not inside or one.primitive.name == "pallas_call":
            yield one
        else:
            for nested in inside:
                yield from _equations(nested)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def _source(equation: Any) -> Source | None:
    frames = getattr(equation.source_info.traceback, "frames", ())
    return innermost_source((frame.file_name, frame.line_num, frame.function_name) for frame in frames)
