"""A model as it was before a trace or a call that has to leave nothing behind: its
weights, its attributes and all that it reaches.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.state_places import take_snapshots


class ModelSnapshot:
    """What a model, or a function, has at some moment.

    It refers to the arrays, so that a compiled call which overwrites some of them
    copies those first.

    Args:
        model: whose weights, attributes, lists and other objects count, also those that
            its code reaches through globals.
    """

    def __init__(self, model: Any) -> None:
        is_module = isinstance(model, torch.nn.Module)
        self._state = PythonState(model, [model] if is_module else None)
        self._containers = take_snapshots(self._state)
        self._host_values = self._state.host_tensors.values()
        weights = [
            tensor
            for module in self._state.modules
            for tensor in (*module.parameters(), *module.buffers())
        ]
        tensors = {id(tensor): tensor for tensor in (*weights, *self._state.tensors)}
        self._tensors = [(tensor, dict(vars(tensor))) for tensor in tensors.values()]

    def restore(self) -> None:
        """Give the model back what it had."""
        for snapshot in self._containers:
            snapshot.restore()
        for tensor, attributes in self._tensors:
            vars(tensor).clear()
            vars(tensor).update(attributes)
        self._state.host_tensors.restore(self._host_values)


@contextlib.contextmanager
def left_as_it_was(model: Any) -> Iterator[None]:
    """Let a model, or a function, have after the block what it had before, also if the
    block raises.

    For everything that traces or runs a model only to look at it.
    """
    snapshot = ModelSnapshot(model)
    try:
        yield
    finally:
        snapshot.restore()
