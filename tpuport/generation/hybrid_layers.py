"""Cache layers of hybrid models: keys and values of fixed shapes beside the states of a
linear attention.

transformers combines the two by inheritance, `LinearAttentionLayer` and a layer of keys
and values; so do these, with tpuport's layers of keys and values.
"""

from typing import Any

from transformers import cache_utils

from tpuport.generation.fixed_layers import FixedLayer, RingLayer, WindowLayer


class _NoStates:
    """The base where the installed transformers has no layers with states, nor models
    that ask for them.
    """


_LinearAttentionLayer: Any = getattr(cache_utils, "LinearAttentionLayer", _NoStates)


class HybridLayer(_LinearAttentionLayer, FixedLayer):
    """A `FixedLayer` with convolution and recurrent states, whose shapes are fixed in
    transformers already.
    """

    def __init__(self, slots: int, mesh: Any = None, number_of_states: int = 1) -> None:
        FixedLayer.__init__(self, slots, mesh)
        _LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Traced. Allocate states, which come by name; keys and values do not, and are
        allocated by the prompt.
        """
        if args:
            FixedLayer.lazy_initialization(self, *args)
        _LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def get_max_length(self) -> int:
        """Positions that fit."""
        return self.slots


class HybridWindowLayer(HybridLayer, WindowLayer):
    """A `WindowLayer` with convolution and recurrent states."""


class HybridRingLayer(HybridLayer, RingLayer):
    """A `RingLayer` with convolution and recurrent states."""
