"""The operation that made a traced array. The one place that reads jax's private tracer fields.

jax keeps with every array traced by `jax.jit` the equation that it came out of. That is no public interface, so
each function here answers None when a field is not what jax 0.10 has there; then only the shape of a mask is known.
"""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal


def equation_of(tracer: Any) -> tuple[Any, int] | None:
    """The equation that made a tracer and the tracer's place among its results; None for an argument or unknown.

    The equation has `primitive`, `params`, `effects` and `invars`; the last are tracers.
    """
    equation: Any = getattr(tracer, "parent", None)
    if not _is_of_jit(tracer) or not all(
        hasattr(equation, name) for name in ("primitive", "params", "effects", "invars", "outvars")
    ):
        return None
    places = [
        place for place, result in enumerate(equation.outvars) if result is getattr(tracer, "val", None)
    ]
    return (equation, places[0]) if len(places) == 1 else None


def _is_of_jit(tracer: Any) -> bool:
    """Whether this is what `jax.jit` traces with. In the tracers of vmap and the like, `val` is another thing."""
    return type(tracer).__name__ == "DynamicJaxprTracer"


def concrete(value: Any) -> jax.Array | np.ndarray | None:
    """The array itself where `value` is no tracer or stands for a constant of the trace; else None."""
    if not isinstance(value, Tracer):
        return value if isinstance(value, jax.Array | np.ndarray) else np.asarray(value)
    if not _is_of_jit(value):
        return None
    atom: Any = getattr(value, "val", None)
    if isinstance(atom, Literal):
        return np.asarray(atom.val, value.dtype)
    constants = getattr(getattr(getattr(value, "_trace", None), "frame", None), "constvar_to_val", {})
    try:
        found = constants.get(atom)
    except TypeError:
        return None
    return found if isinstance(found, jax.Array | np.ndarray) and not isinstance(found, Tracer) else None
