"""Layers of a caller's cache after `generate`: transformers' own, whose keys and values
are the written columns of longer arrays.

To cut them out would compile a program for each length. So that is done where somebody
asks for them, and the next call of `generate` takes the arrays as they are. Shapes: B
rows, K key/value heads, T columns of the arrays, D head dimension.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tpuport import compat

_STATES = ("keys", "values")


def _states(name: str) -> property:
    """The keys or values of a layer, [B, K, columns, D]."""

    def read(layer: Any) -> Any:
        whole = vars(layer).get("whole_states")
        if whole is None:
            return vars(layer).get(name)
        array = compat.as_jax(whole[name])
        # A cache of one row has no dimension for it.
        array = array[None] if array.ndim == len("KTD") else array
        return compat.wrap(array[: layer.rows, :, : layer.columns])

    def write(layer: Any, value: Any) -> None:
        # Whoever writes one of them, writes the other too.
        others = {other: getattr(layer, other) for other in _STATES if other != name}
        vars(layer).update(others | {name: value, "whole_states": None})

    return property(read, write)


class _GrownLayer:
    """Attributes of a layer that `generate` has written.

    Attributes:
        whole_states: the arrays by name, [B, K, T, D] or [K, T, D]; None once keys or
            values were replaced.
        rows, columns: how much of them is the layer's.
    """

    # So that an object of the derived class can become one of this.
    __slots__ = ()
    keys = _states("keys")
    values = _states("values")
    whole_states: dict[str, torch.Tensor] | None
    rows: int
    columns: int


class GrownLayer(DynamicLayer, _GrownLayer):
    """A `DynamicLayer`."""

    def get_seq_length(self) -> int:
        """Positions written."""
        if self.whole_states is not None:
            return self.columns
        return super().get_seq_length()


class GrownWindowLayer(DynamicSlidingWindowLayer, _GrownLayer):
    """A `DynamicSlidingWindowLayer`."""


def grow(layer: Any, states: dict[str, Any], rows: int, columns: int) -> None:
    """Give a layer of transformers these jax arrays, of which so much is its own."""
    is_window = isinstance(layer, DynamicSlidingWindowLayer)
    layer.__class__ = GrownWindowLayer if is_window else GrownLayer
    for name in _STATES:
        vars(layer).pop(name, None)
    whole = {name: compat.wrap(array) for name, array in states.items()}
    vars(layer).update(
        whole_states=whole,
        rows=rows,
        columns=columns,
        is_initialized=True,
        device=torch.device("jax"),
    )
