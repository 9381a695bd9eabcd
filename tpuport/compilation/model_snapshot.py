"""A model as it was before a call that may have to be undone: its weights, its
attributes and all that it reaches.
"""

import torch

from tpuport.compilation.python_state import PythonState
from tpuport.compilation.state_places import take_snapshots


class ModelSnapshot:
    """What a ported model has at some moment.

    It refers to the arrays, so that a compiled call which overwrites some of them
    copies those first.

    Args:
        model: whose weights, attributes, lists and other objects count.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        state = PythonState(model, [model])
        self._containers = take_snapshots(state)
        tensors = {
            id(tensor): tensor
            for tensor in (*model.parameters(), *model.buffers(), *state.tensors)
        }
        self._tensors = [(tensor, dict(vars(tensor))) for tensor in tensors.values()]

    def restore(self) -> None:
        """Give the model back what it had."""
        for snapshot in self._containers:
            snapshot.container.fill(snapshot.contents)
        for tensor, attributes in self._tensors:
            vars(tensor).clear()
            vars(tensor).update(attributes)
