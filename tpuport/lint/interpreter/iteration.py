"""What comes out of a thing that is iterated."""

from tpuport.lint.abstract_values import (
    CONFIG,
    INT,
    STATIC,
    STR,
    UNKNOWN,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    join_all,
    tensor,
)
from tpuport.lint.interpreter.frame import Frame


def element(frame: Frame, source: Value) -> Value:
    """One element of the iterated value."""
    if isinstance(source, Tensor):
        return tensor(source.dtype, source.exact, max(source.ndim - 1, -1), view=True, origin=source.origin)
    if isinstance(source, Sequence):
        if source.items is not None and source.items:
            return join_all(source.items)
        return source.element
    if isinstance(source, Static):
        return {"shape": INT, "config": CONFIG, "str": STR}.get(source.kind, STATIC)
    if isinstance(source, Mapping):
        return STATIC
    if isinstance(source, Instance):
        method = frame.machine.classes.method(source.info, "__iter__")
        if method is not None:
            return element(frame, frame.machine.call_function(method, source, [], {}, frame))
    return UNKNOWN
