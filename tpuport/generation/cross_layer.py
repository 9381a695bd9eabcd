"""A layer of the decoding cache for what an encoder has read: S columns, as many as the
prompt brings.
"""

from typing import Any

import jax
import torch
from transformers.cache_utils import CacheLayerMixin

from tpuport import compat
from tpuport.errors import PortError
from tpuport.generation.fixed_layers import FixedLayer


class CrossLayer(CacheLayerMixin):
    """Keys and values of one layer's cross-attention, [B, K, S, D], written by the
    prompt and never again.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, mesh: Any = None) -> None:
        super().__init__()
        self.mesh = mesh
        self.columns = 0

    def lazy_initialization(
        self, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> None:
        raise PortError(
            "tpuport's cache layers are written by the prompt",
            fix="call update() with the prompt",
        )

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
        self.columns = key_states.shape[2]
        self.keys, self.values = self._shard(key_states), self._shard(value_states)
        self.is_initialized = True
        return key_states, value_states

    def _shard(self, states: torch.Tensor) -> torch.Tensor:
        if self.mesh is None or self.mesh.size == 1:
            return states
        array = compat.as_jax(states)
        return compat.wrap(
            jax.lax.with_sharding_constraint(
                array, FixedLayer.sharding(self.mesh, array.shape, array.ndim)
            )
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and first position of the keys."""
        return self.columns, 0

    def get_seq_length(self) -> int:
        """Columns of the encoder's output, 0 before the prompt."""
        return self.columns

    def get_max_length(self) -> int:
        """Columns of the encoder's output."""
        return self.columns

    # Its name in the first releases of transformers 5.
    def get_max_cache_shape(self) -> int:
        """As `get_max_length`."""
        return self.columns
