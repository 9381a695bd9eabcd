"""Cache layers of the decoding loop: fixed shapes, written in place, no Python state
that changes.

transformers' own static sliding-window layer keeps its length as a Python integer,
which a loop cannot carry. Shapes: B batch, K key/value heads, Q new columns, T cache
length, W sliding window, D head dimension.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from tpuport import compat
from tpuport.errors import PortError
from tpuport.generation.rounded_states import dequantize_states, quantize_states
from tpuport.hardware.mesh import dividing_axis

# Dimensions of a layer's arrays, the batch included: [B, K, T, D] and [B, K, T].
_DIMENSIONS: Final = {"keys": 4, "values": 4, "key_scales": 3, "value_scales": 3}


def count(queries: Any) -> int:
    """The number of queries, in place of which the first releases of transformers 5
    give their positions.
    """
    return queries if isinstance(queries, int) else queries.shape[0]


class PromptLayer(CacheLayerMixin):
    """A layer whose arrays the prompt makes, of which the batch is divided over dp and
    the heads over tp, if they divide evenly.

    Attributes:
        slots: how many columns there are.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, slots: int, mesh: Any = None) -> None:
        super().__init__()
        self.slots = slots
        self.mesh = mesh
        # On a single device there is nothing to divide.
        self._is_divided = mesh is not None and mesh.size > 1

    def lazy_initialization(
        self, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> None:
        raise PortError(
            "tpuport's cache layers are allocated by the prompt",
            fix="call update() with the prompt first",
        )

    def _shard(self, states: jax.Array) -> jax.Array:
        """Traced. [B, K, Q, ...] as it is divided."""
        if not self._is_divided:
            return states
        return jax.lax.with_sharding_constraint(
            states, self.sharding(self.mesh, states.shape, states.ndim)
        )

    @staticmethod
    def sharding(mesh: Mesh, shape: tuple[int, ...], dimensions: int) -> NamedSharding:
        """Of an array that has so many dimensions with the batch: its rows over dp and
        its heads over tp.

        Keys and values have four, [B, K, T, D], and scales three; there is one less
        without the batch.
        """
        # Without the batch dimension, the heads come first.
        axes = ("dp", "tp")[dimensions - len(shape) :]
        entries = [
            dividing_axis(mesh, axis, size)
            for axis, size in zip(axes, shape, strict=False)
        ]
        return NamedSharding(mesh, PartitionSpec(*entries))

    def get_max_length(self) -> int:
        """Positions that fit."""
        return self.slots

    # Its name in the first releases of transformers 5.
    def get_max_cache_shape(self) -> int:
        """As `get_max_length`."""
        return self.get_max_length()


class FixedLayer(PromptLayer):
    """Keys and values of one layer, [B, K, T, D], or [K, T, D] if B is 1; position p is
    in slot p.

    The first update (the prompt) must fill an empty cache and attends to the prompt
    alone, not to the empty slots; later updates write at `length` and attend to every
    slot, the mask hiding those not yet written.

    With `in_int8`, keys and values are int8, and `key_scales` and `value_scales`
    [B, K, T], or [K, T], have what they are to be multiplied with. Every query attends
    to rounded keys and values, those of its own update too: so it does not matter which
    columns are written together.
    """

    def __init__(self, slots: int, mesh: Any = None) -> None:
        super().__init__(slots, mesh)
        self.in_int8 = False
        self.key_scales: torch.Tensor | None = None
        self.value_scales: torch.Tensor | None = None
        self.length: torch.Tensor | None = None

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Traced. Write [B, K, Q, D] and return what to attend to."""
        columns = key_states.shape[2]
        length = compat.as_jax(self.length) if self.is_initialized else 0
        keys, self.keys, self.key_scales = self._update(
            self.keys, self.key_scales, key_states
        )
        values, self.values, self.value_scales = self._update(
            self.values, self.value_scales, value_states
        )
        self.length = compat.wrap(jnp.asarray(length + columns, jnp.int32))
        self.is_initialized = True
        return keys, values

    def arrays(self) -> dict[str, Any]:
        """The arrays of the layer that have columns, by the names of its attributes."""
        return {
            name: getattr(self, name)
            for name in _DIMENSIONS
            if getattr(self, name) is not None
        }

    def shardings(self, mesh: Mesh) -> dict[str, NamedSharding]:
        """Of those arrays."""
        return {
            name: self.sharding(mesh, array.shape, _DIMENSIONS[name])
            for name, array in self.arrays().items()
        }

    def _update(
        self,
        cached: torch.Tensor | None,
        scales: torch.Tensor | None,
        states: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Traced. What to attend to, [B, K, P, D] or [B, K, T, D], and both arrays with
        [B, K, Q, D] in them.
        """
        new = compat.as_jax(states)
        if not self.in_int8:
            whole, result = self._store(cached, new)
            return compat.wrap(whole), compat.wrap(result), None
        values, new_scales = quantize_states(new)
        whole_values, result = self._store(cached, values)
        whole_scales, result_scales = self._store(scales, new_scales)
        whole = dequantize_states(whole_values, whole_scales, new.dtype)
        return compat.wrap(whole), compat.wrap(result), compat.wrap(result_scales)

    def _store(
        self, cached: torch.Tensor | None, new: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Traced. What the new columns [B, K, Q, ...] may attend to, and the layer's
        array with them in it.
        """
        if not self.is_initialized:
            return new, self._pack(self._shard(self._place_prompt(new)))
        old = compat.as_jax(cached)
        packed = self._pack(new).astype(old.dtype)
        slot = self._slot(compat.as_jax(self.length), new.shape[2])
        axis = packed.ndim - new.ndim + 2
        result = self._keep_layout(
            jax.lax.dynamic_update_slice_in_dim(old, packed, slot, axis=axis), new.ndim
        )
        return result.reshape(*new.shape[:2], self.slots, *new.shape[3:]), result

    def _keep_layout(self, array: jax.Array, dimensions: int) -> jax.Array:
        """Traced. The array in the row-major layout that it has outside of the decoding
        loop.

        Inside of the loop XLA would choose another for the TPU, and copy the whole
        cache into it before the loop and back after it: the cache would be in memory
        twice.

        Args:
            dimensions: of the array with the batch, which it may be without.
        """

        def constrain(shard: jax.Array) -> jax.Array:
            return with_layout_constraint(shard, Layout(tuple(range(shard.ndim))))

        if not self._is_divided:
            # In a program of its own: at the end of one that donates its caches, jax
            # would take the layout for one that the outputs ask for, and refuse the
            # arguments for not asking for it.
            return jax.jit(constrain)(array)
        # By shard: the partitioner would give every device the whole of a whole array.
        spec = self.sharding(self.mesh, array.shape, dimensions).spec
        return jax.shard_map(
            constrain, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False
        )(array)

    def _pack(self, states: jax.Array) -> jax.Array:
        """Traced. [B, K, Q, ...] as the layer stores it: without the batch dimension if
        that is 1.

        XLA drops such a dimension from the product. Were it there, XLA would not read
        the array that it has just written in place, but a second one of the product's
        shape: a copy of the whole cache in every step.
        """
        return states[0] if states.shape[0] == 1 else states

    def _place_prompt(self, states: jax.Array) -> jax.Array:
        """The prompt's states [B, K, Q, ...] in their slots [B, K, T, ...]."""
        if states.shape[2] > self.slots:
            # A ValueError, because it is the model's code that does not suit the loop.
            raise ValueError(
                f"the prompt takes {states.shape[2]} columns of a cache of {self.slots}: the model adds some of its own"
            )
        others = [(0, 0)] * (states.ndim - 3)
        return jnp.pad(
            states, ((0, 0), (0, 0), (0, self.slots - states.shape[2]), *others)
        )

    def spread(self, states: jax.Array, columns: jax.Array) -> jax.Array:
        """Traced. Of one row's [K, T, ...], for each row the columns [B, T], as the
        layer stores them.
        """
        return self._pack(self._shard(jnp.swapaxes(states[:, columns], 0, 1)))

    def _slot(self, length: jax.Array, columns: int) -> jax.Array:
        return length

    def get_mask_sizes(self, query_length: Any) -> tuple[Any, Any]:
        """Length and first position of the keys that `update` will return."""
        return (self.slots if self.is_initialized else count(query_length)), 0

    def get_seq_length(self) -> Any:
        """Positions written: 0 before the prompt, afterwards an int32 scalar tensor."""
        return self.length if self.is_initialized else 0


class UnusedLayer(DynamicLayer):
    """A layer without keys and values that transformers asks for the number of columns,
    because it is the first of a cache whose other layers have them.
    """

    is_compileable = True

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Length and first position of the keys that the other layers return."""
        return self.slots, 0

    def get_seq_length(self) -> int:
        """The last position, from which a query sees all columns that the mask
        shows.
        """
        return self.slots


class WindowLayer(FixedLayer):
    """A sliding-window layer whose window is not shorter than the cache: each position
    has a slot.
    """

    is_sliding = True


class RingLayer(FixedLayer):
    """The last W positions of a sliding-window layer, [B, K, W, D]: position p is in
    slot p mod W.
    """

    is_sliding = True

    def _place_prompt(self, states: jax.Array) -> jax.Array:
        length = states.shape[2]
        if length < self.slots:
            return super()._place_prompt(states)
        return self.last_columns(states, length, axis=2)

    def last_columns(self, states: jax.Array, columns: int, axis: int) -> jax.Array:
        """Traced. Of an array with T columns along an axis, of which `columns` are
        written, the last W in their slots.

        Of a longer prompt only these are kept, each in the slot that the loop will
        overwrite in turn.
        """
        first = max(columns - self.slots, 0)
        last = jax.lax.slice_in_dim(states, first, first + self.slots, axis=axis)
        return jnp.roll(last, first % self.slots, axis=axis)

    def _slot(self, length: jax.Array, columns: int) -> jax.Array:
        # Several tokens might go past the end of the ring, which one slice cannot
        # write.
        if columns != 1:
            raise PortError(
                "a sliding-window cache takes one token a step after the prompt",
                where=f"{columns} tokens",
            )
        return length % self.slots

    def get_mask_sizes(self, query_length: Any) -> tuple[Any, Any]:
        """As FixedLayer; once the ring turns, the first position is a vector [W], slot
        by slot.

        `transformers_mask` takes it as such.
        """
        if not self.is_initialized:
            return count(query_length), 0
        # Of the positions that the slot takes, the last one that has been written.
        slots = jnp.arange(self.slots, dtype=jnp.int32)
        length = compat.as_jax(self.length)
        return self.slots, compat.wrap(length - (length - slots) % self.slots - slots)
