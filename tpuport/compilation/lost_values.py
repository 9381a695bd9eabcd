"""What a model assigns inside of a loop on the device: nothing carries it out, and to
use it afterwards is an error.

A compiled call returns what its model assigns (`state_writes`). A loop, such as that of
`generate`, returns its own results alone: an attribute that is assigned inside of it
would be left with a tensor of the trace, which has no value. A counter would be left
with the number of traces: the loop runs a block many times that Python runs once, and
further loops not at all. Every trace of the block starts with the count from before the
first.
"""

import contextlib
import enum
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.compat.tracing import trace_lock
from tpuport.compilation.decisions.host_inputs import libraries_trusted
from tpuport.compilation.model_weights import use_weights
from tpuport.compilation.shared_tensors import weights_shown
from tpuport.errors import PortError
from tpuport.internals.torchax_internals import ARRAY
from tpuport.objects.object_parts import PLAIN, leads_to_traced
from tpuport.objects.part_containers import ABSENT, Container, Dictionary, Items
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.state_places import (
    WEIGHTS,
    Snapshot,
    assigning_line,
    containers_of,
    is_same,
    take_snapshots,
)

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror "
    "xor rxor lshift rlshift rshift rrshift iadd isub imul itruediv neg pos abs invert eq ne lt le gt ge bool int "
    "float index complex round trunc len iter contains getitem setitem array jax_array"
).split()
# transformers' name for rotary frequencies, which longrope computes anew in every call
# before it reads them.
_RECOMPUTED = "inv_freq"


class _NoStart(enum.Enum):
    """Why a lost value has no start. An enumeration, whose members survive copying and
    pickling.
    """

    TENSOR = "the model itself cannot go on from anything"
    ABSENT = "the model assigned it for the first time"


class LostValueError(PortError, AttributeError):
    """A value is used that was computed in a loop on the device and never left it.

    An AttributeError too, because `isinstance` and `hasattr` ask any object for
    attributes.
    """


class LostValue:
    """In place of a value that was assigned inside of a loop: every use raises, and
    names the attribute.

    Args:
        path: of the attribute or variable.
        loop: what does not carry it out: "the loop of tpuport.generate".
        line: that assigns it.
        start: for a counter, the value from before the loop.
    """

    __slots__ = ("__weakref__", "_line", "_loop", "_path", "_start")

    def __init__(
        self, path: str, loop: str, line: str, start: Any = _NoStart.TENSOR
    ) -> None:
        self._path = path
        self._loop = loop
        self._line = line
        self._start = start

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error that explains where the value is."""
        raise LostValueError(
            f"{self._path} was assigned inside of {self._loop}, which does not carry it out",
            where=self._line,
            fix="assign a value of your own before you use it; what is assigned in the model's own call, model(...), "
            "and in compiled functions is carried out",
        )

    def __getattr__(self, name: str) -> NoReturn:
        # Python's own protocols (copying, pickling, `inspect`) ask whether a special
        # method exists.
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> NoReturn:
        values = [*args, *(kwargs or {}).values()]
        # An operand may be in a list, as those of `torch.cat`.
        values += [
            item
            for value in values
            if isinstance(value, list | tuple)
            for item in value
        ]
        next(value for value in values if isinstance(value, LostValue)).refuse()

    def __repr__(self) -> str:
        return f"<{self._path}, lost in {self._loop}>"

    def __format__(self, specification: str) -> str:
        # Without a specification a text shows what it is.
        return repr(self) if not specification else self.refuse()

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[type, tuple]:
        return LostValue, (self._path, self._loop, self._line, self._start)

    def is_same(self, other: Any) -> bool:
        """Whether the other is a value that was lost in the same place and the same
        loop, from the same start.
        """
        if not isinstance(other, LostValue) or (self._path, self._loop) != (
            other._path,
            other._loop,
        ):
            return False
        return is_same(self._start, other._start)

    @property
    def is_counter(self) -> bool:
        """Whether this replaces a Python value, from which every trace of the loop
        starts.
        """
        return self._start is not _NoStart.TENSOR

    @property
    def start(self) -> Any:
        """The value from before the loop, `ABSENT` if there was none."""
        return ABSENT if self._start is _NoStart.ABSENT else self._start


for _name in _OPERATORS:
    setattr(LostValue, f"__{_name}__", LostValue.refuse)


class WrittenInLoop(PortError):
    """A model writes in place to a weight, or to another tensor that it has not
    computed, in a loop.
    """


@contextlib.contextmanager
def use_weights_in_loop(
    model: torch.nn.Module, arrays: dict[str, jax.Array], loop: str
) -> Iterator[None]:
    """Traced. As `use_weights`, in a loop that carries out nothing that the model
    assigns.

    A `LostValue` replaces every traced tensor that the model leaves in an attribute, an
    item or a variable, and every number that it changes there. Lists lose all that the
    model appends.

    Args:
        model: that the block calls.
        arrays: its weights.
        loop: what the block is a part of, for messages.

    Raises:
        WrittenInLoop: the model writes in place to a weight, or replaces it, or writes
            to another tensor that it has not computed.
    """
    with trace_lock:
        state = PythonState(model, [model])
        snapshots = take_snapshots(state)
        for snapshot in snapshots:
            _restart_counters(snapshot)
        tensors = [dict(vars(tensor)) for tensor in state.tensors]
        try:
            weights = state.named_weights(model)
            with (
                libraries_trusted(model),
                use_weights([model], [arrays]) as (in_use,),
            ):
                with weights_shown(state.tensors, weights, in_use.tensors):
                    yield
                changed = (*in_use.find_writes(), *in_use.find_replaced())
                written = [name for name in changed if not name.endswith(_RECOMPUTED)]
        finally:
            # Also after an error, whose traceback a user may inspect in the same
            # process.
            for snapshot in snapshots:
                if not snapshot.is_current():
                    _replace_lost(snapshot, state, loop)
            located = state.located_tensors()
            indices = _undo_writes(state.tensors, tensors)
    written += [located[index][0] for index in indices]
    if written:
        path = written[0]
        line = assigning_line(state, path)
        # What was written is undone, so a flag that says that it was would be wrong.
        for snapshot in snapshots:
            snapshot.restore()
        raise WrittenInLoop(
            f"{path} is written to in place inside of {loop}, or replaced, which it does not carry out",
            where=line,
            fix="compute a new tensor, or decode with your own loop over tpuport.compile(model)",
        )


def _restart_counters(snapshot: Snapshot) -> None:
    """Let the model go on from what its counters were before they were lost."""
    items = dict(snapshot.contents)
    if not any(map(_is_lost_counter, items.values())):
        return
    if _has_order(snapshot.container):
        # What the model has appended goes away again, unless something follows it.
        while items and _start(items[len(items) - 1]) is ABSENT:
            items.popitem()
    started = {name: _start(value) for name, value in items.items()}
    if snapshot.container.has_names:
        started = {
            name: value for name, value in started.items() if value is not ABSENT
        }
    else:
        started = {
            name: items[name] if value is ABSENT else value
            for name, value in started.items()
        }
    snapshot.container.fill(started)


def _replace_lost(snapshot: Snapshot, state: PythonState, loop: str) -> None:
    """Replace what the model has left in a container and what the loop does not carry
    out.
    """
    location, container, before, _ = snapshot
    if location.part in WEIGHTS:
        # A weight that is gone is an AttributeError by itself.
        container.fill(before)
        return
    items = container.read()
    # A module's dictionaries are attributes of it, and have snapshots of their own.
    own_dictionaries = {
        id(own.items)
        for own in containers_of(state.nodes[location.node]).values()
        if isinstance(own, Dictionary)
    }
    for name, value in list(items.items()):
        former = before.get(name, ABSENT)
        is_counter = _is_counter(_start(former), value, container)
        # What the state knows as an object has a snapshot of its own.
        is_traced = id(value) not in state.node_numbers and leads_to_traced(value)
        if id(value) in own_dictionaries or (not is_counter and not is_traced):
            continue
        path = container.path_of(state.path(location.node), name)
        start = _start(former) if is_counter else _NoStart.TENSOR
        start = _NoStart.ABSENT if start is ABSENT else start
        lost = LostValue(path, loop, assigning_line(state, path), start)
        # The same object as before, so that the state, and with it the program, stays
        # the same.
        items[name] = former if lost.is_same(former) else lost
    # Counters that this trace has left alone are still lost.
    items |= {
        name: former
        for name, former in before.items()
        if _is_lost_counter(former) and is_same(items.get(name, ABSENT), former.start)
    }
    container.fill(items)


def _is_lost_counter(value: Any) -> bool:
    return isinstance(value, LostValue) and value.is_counter


def _start(value: Any) -> Any:
    return value.start if _is_lost_counter(value) else value


def _has_order(container: Container) -> bool:
    return isinstance(container, Items) and container.has_order


def _is_counter(former: Any, value: Any, container: Container) -> bool:
    """Whether a Python value depends on the number of calls: a number that they change,
    or an item that they append.
    """
    if (
        (isinstance(container, Items) and not container.has_order)
        or not isinstance(value, PLAIN)
        or is_same(former, value)
    ):
        return False
    if _has_order(container) and former is ABSENT:
        return True
    # A flag or a name is the same, however often it is assigned.
    return isinstance(value, int | float | complex) and not isinstance(value, bool)


def _undo_writes(
    tensors: list[torch.Tensor], attributes: list[dict[str, Any]]
) -> list[int]:
    """Give tensors back what they had before a trace wrote to them; the numbers of
    these.
    """
    written = []
    for number, (tensor, former) in enumerate(zip(tensors, attributes, strict=True)):
        if isinstance(compat.as_jax(tensor), Tracer) and not isinstance(
            former.get(ARRAY), Tracer
        ):
            vars(tensor).clear()
            vars(tensor).update(former)
            written.append(number)
    return written
