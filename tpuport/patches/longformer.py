"""Longformer's encoder, whose attention is LED's."""

from collections.abc import Callable
from typing import Any

import torch

from tpuport.patches.led import Columns
from tpuport.patches.switch import with_original


@with_original
def encode(
    original: Callable[..., Any],
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Traced. As `LongformerEncoder.forward`, whose mask [B, S] says by its signs which
    tokens attend globally.
    """
    return original(self, hidden_states, Columns(attention_mask), *args, **kwargs)
