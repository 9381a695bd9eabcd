"""Private names of jax: the equations behind tracers, and the state of
`jax.distributed`; and which traces it keeps.

What asks whether a trace is under way is public: `jax.extend.core`.
"""

from typing import Any, Final

import jax
import numpy as np
from jax.core import Tracer, eval_context
from jax.extend.core import Literal, get_opaque_trace_state
from jax.interpreters import ad

from tpuport.internals.mechanism import Mechanism

_ARRAYS: Final = (jax.Array, np.ndarray)
_EQUATION_FIELDS: Final = ("primitive", "params", "effects", "invars", "outvars")
# This module may be imported for the first time by code that is traced.
with eval_context():
    _NO_TRACE: Final = get_opaque_trace_state()


def find_equation(tracer: Any) -> tuple[Any, int] | None:
    """The equation that made a tracer, and the result's index among its results; None
    for an argument of the traced function, or if a field is not as in jax 0.10 to 0.12.

    The equation has `primitive`, `params`, `effects` and `invars`; the last are
    tracers.
    """
    equation: Any = getattr(tracer, "parent", None)
    has_fields = all(hasattr(equation, name) for name in _EQUATION_FIELDS)
    if not _is_traced_by_jit(tracer) or not has_fields:
        return None
    variable = getattr(tracer, "val", None)
    outputs = [
        index for index, result in enumerate(equation.outvars) if result is variable
    ]
    # Otherwise the tracer is not one of the equation's results in the form that is
    # known here.
    if len(outputs) != 1:
        return None
    return equation, outputs[0]


def find_constant(value: Any) -> jax.Array | np.ndarray | None:
    """The array itself if `value` is not a tracer or is a tracer for a constant of the
    trace; else None.
    """
    if isinstance(value, _ARRAYS) and not isinstance(value, Tracer):
        return value
    if not isinstance(value, Tracer):
        return np.asarray(value)
    if not _is_traced_by_jit(value):
        return None
    atom: Any = getattr(value, "val", None)
    if isinstance(atom, Literal):
        return np.asarray(atom.val, value.dtype)
    frame = getattr(getattr(value, "_trace", None), "frame", None)
    try:
        constant = getattr(frame, "constvar_to_val", {}).get(atom)
    except TypeError:  # an atom of another jax, which cannot be hashed
        return None
    # A tracer of a trace outside may be a constant of this one.
    if isinstance(constant, Tracer) or not isinstance(constant, _ARRAYS):
        return None
    return constant


def _is_traced_by_jit(tracer: Any) -> bool:
    """Whether this is what `jax.jit` traces with. In the tracers of vmap and the like,
    `val` is another thing.
    """
    return type(tracer).__name__ == "DynamicJaxprTracer"


def is_any_trace_under_way() -> bool:
    """Whether operations are traced now and not computed, in this thread."""
    return get_opaque_trace_state() != _NO_TRACE


def distributed_state() -> Any:
    """The record that `jax.distributed.initialize` fills in: `process_id`,
    `num_processes`, `coordinator_address`, and the `client` of the key-value store.

    `jax.process_index()` and `jax.process_count()` would start the devices, and the
    client has no public name.
    """
    from jax._src.distributed import global_state

    return global_state


def has_started_devices() -> bool:
    """Whether jax has started its devices; also False if jax keeps that elsewhere."""
    try:
        from jax._src.xla_bridge import backends_are_initialized
    except ImportError:
        # `jax.distributed.initialize` finds it out then.
        return False
    return backends_are_initialized()


def read_xla_flags() -> Any:
    """XLA's options by the flags of the environment, which it reads once: now, if it
    has not before. Nothing is started.
    """
    from jaxlib import xla_client

    return xla_client.CompileOptions().executable_build_options.debug_options


def is_differentiated(value: Any) -> bool:
    """Whether jax is differentiating with respect to something that a value depends
    on, in a trace that is under way.
    """
    if not isinstance(value, Tracer):
        return False
    if isinstance(value, _DIFFERENTIATED):
        return True
    # Of `vmap`, and of others that wrap a tracer.
    inner = getattr(value, "val", None)
    return isinstance(inner, Tracer) and is_differentiated(inner)


def _differentiated_classes() -> tuple[type, ...]:
    from jax._src.interpreters import ad as all_of_ad

    classes = [ad.JVPTracer, getattr(all_of_ad, "LinearizeTracer", ad.JVPTracer)]
    return tuple(dict.fromkeys(classes))


_DIFFERENTIATED: Final = _differentiated_classes()


def _sees_differentiation() -> bool:
    """Whether it is seen of a value, under `vmap` and `jit`, and of no other."""
    seen = []

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        mapped = jax.vmap(lambda row: seen.append(is_differentiated(row)) or row)(x)
        seen.extend((is_differentiated(x * 2), not is_differentiated(y)))
        return (mapped * y).sum()

    gradient = jax.value_and_grad(function)
    jax.eval_shape(gradient, *[jax.ShapeDtypeStruct((2,), "float32")] * 2)
    return all(seen)


DIFFERENTIATION: Final = Mechanism(
    "gradients by jax",
    "jax",
    rests_on="jax.interpreters.ad.JVPTracer, LinearizeTracer and val of other tracers",
    without="torch.no_grad() inside of a loss, and backward functions of its own, could not be told from other code",
    probe=_sees_differentiation,
    fix="use a version of jax that tpuport was tried with, or compute gradients on the host",
)


def _keeps_traces() -> bool:
    runs = []

    def function(x: jax.Array) -> jax.Array:
        runs.append(x.shape)
        return x

    form = jax.ShapeDtypeStruct((2,), "float32")
    jax.jit(function).trace(form)
    jax.jit(function, donate_argnums=0, keep_unused=True).trace(form)
    jax.jit(function, compiler_options={"an_option": True}).trace(form)
    return len(runs) == 1


KEPT_TRACES: Final = Mechanism(
    "one trace of a program",
    "jax",
    rests_on="jax.jit, which keeps the trace of a function for other options too",
    without="programs are traced a second time from their equations, so that first calls take longer",
    probe=_keeps_traces,
)
