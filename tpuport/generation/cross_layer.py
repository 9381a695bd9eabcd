"""A layer of the decoding cache for what an encoder has read: S columns, as many as the
prompt brings.
"""

from typing import Any

import torch

from tpuport import compat
from tpuport.generation.fixed_layers import PromptLayer


class CrossLayer(PromptLayer):
    """Keys and values of one layer's cross-attention, [B, K, S, D], written by the
    prompt and never again.

    Attributes:
        slots: columns of the encoder's output, 0 before the prompt.
    """

    def __init__(self, mesh: Any = None) -> None:
        super().__init__(0, mesh)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Traced. Keep [B, K, S, D]; a model that writes again for each token would
        grow.
        """
        self.slots = key_states.shape[2]
        self.keys, self.values = (
            compat.wrap(self._shard(compat.as_jax(states)))
            for states in (key_states, value_states)
        )
        self.is_initialized = True
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and first position of the keys."""
        return self.slots, 0

    def get_seq_length(self) -> int:
        """Columns of the encoder's output, 0 before the prompt."""
        return self.slots
