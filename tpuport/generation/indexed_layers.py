"""Cache layers of sparse attention: keys and values of fixed shapes beside the keys of
an indexer.

Shapes: B batch, P prompt columns, Q new columns, T cache length, D head dimension of
the indexer.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.generation.fixed_layers import FixedLayer


class IndexedLayer(FixedLayer):
    """A `FixedLayer` with the indexer's keys [B, T, D], and in some models with the
    positions of all columns.

    As with keys and values, the indexer of the prompt gets the prompt's keys alone, and
    later ones every slot.
    """

    def __init__(self, slots: int, mesh: Any = None) -> None:
        super().__init__(slots, mesh)
        self.indexer_keys: torch.Tensor | None = None
        # Counted for itself: some models write the indexer's keys before the layer's
        # own, some after them.
        self.indexer_length: torch.Tensor | None = None
        self.positions: torch.Tensor | None = (
            None  # [B, 3, T], with rows first, as in all arrays of a cache
        )

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Traced. Write [B, Q, D] and return what the indexer compares queries with."""
        keys = compat.as_jax(indexer_key_states)
        columns = keys.shape[1]
        if self.indexer_keys is None:
            padded = jnp.pad(keys, ((0, 0), (0, self.slots - columns), (0, 0)))
            self.indexer_keys = compat.wrap(padded)
            self.indexer_length = compat.wrap(jnp.asarray(columns, jnp.int32))
            return indexer_key_states
        length = compat.as_jax(self.indexer_length)
        cached = compat.as_jax(self.indexer_keys)
        cached = jax.lax.dynamic_update_slice_in_dim(
            cached, keys.astype(cached.dtype), length, axis=1
        )
        self.indexer_keys = compat.wrap(cached)
        self.indexer_length = compat.wrap(length + columns)
        return self.indexer_keys

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """Traced. Positions [3, B, T] of all columns; None before the prompt. A model
        puts new ones behind them.
        """
        return None if self.positions is None else self.positions.swapaxes(0, 1)

    @indexer_position_ids.setter
    def indexer_position_ids(self, position_ids: torch.Tensor) -> None:
        """Traced. Of the prompt, [3, B, P]; later [3, B, T + Q], whose last Q are
        new.
        """
        positions = compat.as_jax(position_ids).swapaxes(0, 1)
        if self.positions is None:
            positions = jnp.pad(
                positions, ((0, 0), (0, 0), (0, self.slots - positions.shape[2]))
            )
        else:
            length = compat.as_jax(self.indexer_length)
            known, new = positions[..., : self.slots], positions[..., self.slots :]
            positions = jax.lax.dynamic_update_slice_in_dim(known, new, length, axis=2)
        self.positions = compat.wrap(positions)

    def spread_indexer(self, other: Any, columns: jax.Array) -> dict[str, jax.Array]:
        """Traced. Arrays by name: of another layer's only row, of jax arrays, for each
        row the columns [B, T].
        """
        arrays = {}
        if other.indexer_keys is not None:
            arrays["indexer_keys"] = other.indexer_keys[0][columns]
        if other.positions is not None:
            arrays["positions"] = jnp.swapaxes(other.positions[0][:, columns], 0, 1)
        return arrays
