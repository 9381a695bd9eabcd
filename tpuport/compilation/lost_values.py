"""What a model assigns inside of a loop on the device: nothing carries it out, and to use it afterwards is an error.

A compiled call returns what its model assigns (`state_writes`). A loop, such as that of `generate`, returns its own
results alone: an attribute that is assigned inside of it would be left with a tensor of the trace, which has no value.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.compilation.model_weights import use_weights
from tpuport.compilation.python_state import PythonState
from tpuport.compilation.reachable import ABSENT
from tpuport.compilation.state_places import (
    WEIGHTS,
    Snapshot,
    assigning_line,
    is_unchanged,
    item_path,
    leads_to_traced,
    read_contents,
    refill,
    take_snapshots,
)
from tpuport.errors import PortError
from tpuport.tracing import trace_lock

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror "
    "xor rxor lshift rlshift rshift rrshift iadd isub imul itruediv neg pos abs invert eq ne lt le gt ge bool int "
    "float index complex len iter contains getitem setitem array jax_array"
).split()
# transformers' name for rotary frequencies, which longrope computes anew in every call before it reads them.
_RECOMPUTED = "inv_freq"


class LostValueError(PortError, AttributeError):
    """A value is used that was computed in a loop on the device and never left it.

    An AttributeError too, because `isinstance` and `hasattr` ask any object for attributes.
    """


class LostValue:
    """In place of a value that was assigned inside of a loop: every use raises, and names the attribute.

    Args:
        path: of the attribute or variable.
        loop: what does not carry it out: "the loop of tpuport.generate".
        line: that assigns it.
    """

    __slots__ = ("__weakref__", "_line", "_loop", "_path")

    def __init__(self, path: str, loop: str, line: str) -> None:
        self._path = path
        self._loop = loop
        self._line = line

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error that explains where the value is."""
        raise LostValueError(
            f"{self._path} was assigned inside of {self._loop}, which does not carry it out",
            where=self._line,
            fix="call the model, model(...), or compile a function that calls it: these carry out what is assigned",
        )

    def __getattr__(self, name: str) -> NoReturn:
        # Python's own protocols (copying, pickling, `inspect`) ask whether a special method exists.
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> NoReturn:
        values = [*args, *(kwargs or {}).values()]
        # An operand may be in a list, as those of `torch.cat`.
        values += [item for value in values if isinstance(value, list | tuple) for item in value]
        next(value for value in values if isinstance(value, LostValue)).refuse()

    def __repr__(self) -> str:
        return f"<{self._path}, lost in {self._loop}>"

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[type, tuple]:
        return LostValue, (self._path, self._loop, self._line)

    def is_of(self, path: str, loop: str) -> bool:
        """Whether this was assigned in that place and that loop."""
        return (self._path, self._loop) == (path, loop)


for _name in _OPERATORS:
    setattr(LostValue, f"__{_name}__", LostValue.refuse)


@contextlib.contextmanager
def use_weights_in_loop(model: torch.nn.Module, arrays: dict[str, jax.Array], loop: str) -> Iterator[None]:
    """Traced. As `use_weights`, in a loop that carries out nothing that the model assigns.

    A `LostValue` replaces every traced tensor that the model leaves in an attribute, an item or a variable.

    Args:
        model: that the block calls.
        arrays: its weights.
        loop: what the block is a part of, for messages.

    Raises:
        PortError: the model writes in place to a weight or to another tensor that it has not computed.
    """
    with trace_lock:
        state = PythonState(model, [model])
        snapshots = take_snapshots(state)
        tensors = [dict(vars(tensor)) for tensor in state.tensors]
        try:
            with use_weights([model], [arrays]) as (in_use,):
                yield
                written = [name for name in in_use.find_writes() if not name.endswith(_RECOMPUTED)]
        finally:
            # Also after an error, whose traceback a user may inspect in the same process.
            for snapshot in snapshots:
                if not is_unchanged(snapshot.container, snapshot.contents):
                    _replace_traced(snapshot, state, loop)
            located = state.located_tensors()
            indices = _undo_writes(state.tensors, tensors)
    written += [located[index][0] for index in indices]
    if written:
        path = written[0]
        raise PortError(
            f"{path} is written to in place inside of {loop}, which does not carry it out",
            where=assigning_line(state, path),
            fix="compute a new tensor, or decode with your own loop over tpuport.compile(model)",
        )


def _replace_traced(snapshot: Snapshot, state: PythonState, loop: str) -> None:
    location, container, before = snapshot
    if location.part in WEIGHTS:
        # A weight that is gone is an AttributeError by itself.
        refill(container, before)
        return
    contents = read_contents(container)
    items = contents.items() if isinstance(contents, dict) else enumerate(contents)
    for name, value in list(items):
        # What the state knows as an object has a snapshot of its own.
        if state.find_node(value) is not None or not leads_to_traced(value, set()):
            continue
        # A variable has its own name, and a list a number for each item.
        path = state.path(location.node)
        if location.part != "variable":
            path = item_path(path, location.part, name)
        former = before.get(name, ABSENT) if isinstance(before, dict) else ABSENT
        # The same object as before, so that the state, and with it the program, stays the same.
        if isinstance(former, LostValue) and former.is_of(path, loop):
            contents[name] = former
        else:
            contents[name] = LostValue(path, loop, assigning_line(state, path))
    refill(container, contents)


def _undo_writes(tensors: list[torch.Tensor], attributes: list[dict[str, Any]]) -> list[int]:
    """Give tensors back what they had before a trace wrote to them; the numbers of these."""
    written = []
    for number, (tensor, former) in enumerate(zip(tensors, attributes, strict=True)):
        if isinstance(compat.as_jax(tensor), Tracer) and not isinstance(former.get("_elem"), Tracer):
            vars(tensor).clear()
            vars(tensor).update(former)
            written.append(number)
    return written
