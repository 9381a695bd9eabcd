"""The key/value cache of the decoding loop: fixed shapes, written in place, no Python state that changes.

transformers' own static sliding-window layer keeps its length as a Python integer: no carry of a loop.
Shapes: B batch, K key/value heads, T cache length, W sliding window, D head dimension.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers import PretrainedConfig, StaticCache
from transformers.cache_utils import CacheLayerMixin, StaticLayer, StaticSlidingWindowLayer

from tpuport import compat
from tpuport.errors import PortError


class FixedLayer(CacheLayerMixin):
    """Keys and values of one layer, [B, K, T, D], or [K, T, D] for a batch of one; position p is in slot p.

    The first update (the prompt) must fill an empty cache and attends to the prompt alone, not to the empty slots;
    later updates write at `length` and attend to every slot, the mask hiding those not yet written.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, slots: int, mesh: Mesh | None = None) -> None:
        super().__init__()
        self.slots = slots
        self.mesh = mesh
        self.length: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise PortError(
            "tpuport's cache layers are allocated by the prompt", fix="call update() with the prompt first"
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Traced. Write [B, K, Q, D] and return what to attend to."""
        new = key_states.shape[2]
        if not self.is_initialized:
            self.keys, self.values = self._allocated(key_states), self._allocated(value_states)
            self.length = compat.wrap(jnp.asarray(new, jnp.int32))
            self.is_initialized = True
            return key_states, value_states
        length = compat.as_jax(self.length)
        slot = self._slot(length, new)
        self.keys, keys = self._written(self.keys, key_states, slot)
        self.values, values = self._written(self.values, value_states, slot)
        self.length = compat.wrap(length + new)
        return keys, values

    def _allocated(self, states: torch.Tensor) -> torch.Tensor:
        """Traced. The array that the layer keeps, with the prompt's states in it."""
        return compat.wrap(self._packed(self._place(self._first(compat.as_jax(states)))))

    def _written(
        self, kept: torch.Tensor | None, states: torch.Tensor, slot: jax.Array
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Traced. The kept array with [B, K, Q, D] written at `slot`, and all of it as [B, K, T, D]."""
        old, new = compat.as_jax((kept, states))
        packed = self._packed(new).astype(old.dtype)
        result = self._as_it_lies(jax.lax.dynamic_update_slice_in_dim(old, packed, slot, axis=old.ndim - 2))
        return compat.wrap(result), compat.wrap(result.reshape(*new.shape[:2], self.slots, -1))

    def _as_it_lies(self, kept: jax.Array) -> jax.Array:
        """Traced. The array in the layout that it comes and goes in, row by row.

        Inside of the decoding loop XLA would choose another for the TPU, and copy the whole cache into it before the
        loop and back after it: the cache would be in memory twice.
        """

        def lying(shard: jax.Array) -> jax.Array:
            return with_layout_constraint(shard, Layout(tuple(range(shard.ndim))))

        if self.mesh is None or self.mesh.size == 1:
            # In a program of its own: as the last thing in one whose caches are donated jax would take the layout for
            # one that the outputs ask for, and refuse the arguments for not asking for it.
            return jax.jit(lying)(kept)
        # By shard: of a whole array the partitioner makes one that every device has.
        spec = self.sharding(self.mesh, kept.shape).spec
        return jax.shard_map(lying, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)(kept)

    def _packed(self, states: jax.Array) -> jax.Array:
        """Traced. [B, K, Q, D] as the layer keeps it: without the batch dimension where that is 1.

        XLA drops such a dimension from the product. Were it there, XLA would not read the array that it has just
        written in place, but a second one of the product's shape: a copy of the whole cache in every step.
        """
        return states[0] if states.shape[0] == 1 else states

    def _first(self, states: jax.Array) -> jax.Array:
        """The prompt's states [B, K, Q, D] in their slots [B, K, T, D]."""
        return jnp.pad(states, ((0, 0), (0, 0), (0, self.slots - states.shape[2]), (0, 0)))

    def _slot(self, length: jax.Array, new: int) -> jax.Array:
        return length

    def _place(self, states: jax.Array) -> jax.Array:
        """Batch over dp and heads over tp, where they divide."""
        if self.mesh is None or self.mesh.size == 1:
            return states
        sharding = self.sharding(self.mesh, states.shape)
        return jax.lax.with_sharding_constraint(states, sharding)

    @staticmethod
    def sharding(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
        """Where keys or values are kept: [B, K, T, D] with its rows over dp and heads over tp, or [K, T, D]."""
        axes = ("dp", "tp") if len(shape) == 4 else ("tp",)
        names = [
            axis if axis in mesh.shape and size % mesh.shape[axis] == 0 else None
            for axis, size in zip(axes, shape, strict=False)
        ]
        return NamedSharding(mesh, PartitionSpec(*names))

    def get_mask_sizes(self, query_length: int) -> tuple[Any, Any]:
        """Length and first position of the keys that `update` will return."""
        return (self.slots if self.is_initialized else query_length), 0

    def get_seq_length(self) -> Any:
        """Positions written: 0 before the prompt, afterwards an int32 scalar tensor."""
        return self.length if self.is_initialized else 0

    def get_max_length(self) -> int:
        """Positions that fit."""
        return self.slots


class WindowLayer(FixedLayer):
    """A sliding-window layer whose window is not shorter than the cache: each position has a slot."""

    is_sliding = True


class RingLayer(FixedLayer):
    """The last W positions of a sliding-window layer, [B, K, W, D]: position p is in slot p mod W."""

    is_sliding = True

    def _first(self, states: jax.Array) -> jax.Array:
        length = states.shape[2]
        if length < self.slots:
            return super()._first(states)
        return jnp.roll(states[:, :, length - self.slots :], (length - self.slots) % self.slots, axis=2)

    def _slot(self, length: jax.Array, new: int) -> jax.Array:
        if new != 1:
            raise PortError(
                "a sliding-window cache takes one token a step after the prompt", where=f"{new} tokens"
            )
        return length % self.slots

    def get_mask_sizes(self, query_length: int) -> tuple[Any, Any]:
        """As FixedLayer; once the ring turns, the first position is a vector [W], slot by slot.

        `transformers_mask` takes it as such.
        """
        if not self.is_initialized:
            return query_length, 0
        slots = jnp.arange(self.slots, dtype=jnp.int32)
        length = compat.as_jax(self.length)
        return self.slots, compat.wrap(length - (length - slots) % self.slots - slots)


def _decoding_layer(layer: Any, length: int, mesh: Mesh | None) -> Any:
    if type(layer) is StaticLayer:
        return FixedLayer(length, mesh)
    if type(layer) is StaticSlidingWindowLayer:
        window = layer.max_cache_len
        return RingLayer(window, mesh) if window < length else WindowLayer(length, mesh)
    return layer


def decoding_cache(config: PretrainedConfig, length: int, mesh: Mesh | None = None) -> StaticCache:
    """An empty cache for `length` positions, by the layer types of the config; the prompt makes its arrays."""
    cache = StaticCache(config=config, max_cache_len=length)
    cache.layers = [_decoding_layer(layer, length, mesh) for layer in cache.layers]
    return cache
