"""Longformer's encoder, whose attention is LED's."""

from typing import Any

import torch

from tpuport.patches import registry
from tpuport.patches.led import Columns

_ENCODER = (
    "transformers.models.longformer.modeling_longformer:LongformerEncoder.forward"
)


def encode(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Traced. As `LongformerEncoder.forward`, whose mask [B, S] says by its signs which
    tokens attend globally.
    """
    return registry.original(_ENCODER)(
        self, hidden_states, Columns(attention_mask), *args, **kwargs
    )
