"""The key/value cache of the decoding loop: fixed shapes, written in place, no Python state that changes; and its size.

transformers' own static sliding-window layer keeps its length as a Python integer, which a loop cannot carry.
Shapes: B batch, K key/value heads, T cache length, W sliding window, D head dimension.
"""

import copy
from collections.abc import Callable, Hashable
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers import AutoModelForCausalLM, PretrainedConfig, StaticCache
from transformers.cache_utils import CacheLayerMixin, StaticLayer, StaticSlidingWindowLayer

from tpuport import compat
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.mesh import dividing_axis
from tpuport.static_values import exact_key


class FixedLayer(CacheLayerMixin):
    """Keys and values of one layer, [B, K, T, D], or [K, T, D] if B is 1; position p is in slot p.

    The first update (the prompt) must fill an empty cache and attends to the prompt alone, not to the empty slots;
    later updates write at `length` and attend to every slot, the mask hiding those not yet written.
    """

    is_compileable = True
    is_sliding = False

    def __init__(self, slots: int, mesh: Any = None) -> None:
        super().__init__()
        self.slots = slots
        self.mesh = mesh
        # On a single device there is nothing to divide.
        self._is_divided = mesh is not None and mesh.size > 1
        self.length: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise PortError(
            "tpuport's cache layers are allocated by the prompt", fix="call update() with the prompt first"
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Traced. Write [B, K, Q, D] and return what to attend to."""
        columns = key_states.shape[2]
        if not self.is_initialized:
            self.keys = self._allocate(key_states)
            self.values = self._allocate(value_states)
            self.length = compat.wrap(jnp.asarray(columns, jnp.int32))
            self.is_initialized = True
            return key_states, value_states
        length = compat.as_jax(self.length)
        slot = self._slot(length, columns)
        self.keys, keys = self._write(self.keys, key_states, slot)
        self.values, values = self._write(self.values, value_states, slot)
        self.length = compat.wrap(length + columns)
        return keys, values

    def _allocate(self, states: torch.Tensor) -> torch.Tensor:
        """Traced. The layer's array, with the prompt's states in it."""
        return compat.wrap(self._pack(self._shard(self._place_prompt(compat.as_jax(states)))))

    def _write(
        self, cached: torch.Tensor | None, states: torch.Tensor, slot: jax.Array
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Traced. The cached array with [B, K, Q, D] written at `slot`, and all of it as [B, K, T, D]."""
        old, new = compat.as_jax((cached, states))
        packed = self._pack(new).astype(old.dtype)
        result = self._keep_layout(jax.lax.dynamic_update_slice_in_dim(old, packed, slot, axis=old.ndim - 2))
        return compat.wrap(result), compat.wrap(result.reshape(*new.shape[:2], self.slots, -1))

    def _keep_layout(self, array: jax.Array) -> jax.Array:
        """Traced. The array in the row-major layout that it has outside of the decoding loop.

        Inside of the loop XLA would choose another for the TPU, and copy the whole cache into it before the loop and
        back after it: the cache would be in memory twice.
        """

        def constrain(shard: jax.Array) -> jax.Array:
            return with_layout_constraint(shard, Layout(tuple(range(shard.ndim))))

        if not self._is_divided:
            # In a program of its own: at the end of one that donates its caches, jax would take the layout for one that
            # the outputs ask for, and refuse the arguments for not asking for it.
            return jax.jit(constrain)(array)
        # By shard: the partitioner would give every device the whole of a whole array.
        spec = self.sharding(self.mesh, array.shape).spec
        return jax.shard_map(constrain, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)(array)

    def _pack(self, states: jax.Array) -> jax.Array:
        """Traced. [B, K, Q, D] as the layer stores it: without the batch dimension if that is 1.

        XLA drops such a dimension from the product. Were it there, XLA would not read the array that it has just
        written in place, but a second one of the product's shape: a copy of the whole cache in every step.
        """
        return states[0] if states.shape[0] == 1 else states

    def _place_prompt(self, states: jax.Array) -> jax.Array:
        """The prompt's states [B, K, Q, D] in their slots [B, K, T, D]."""
        return jnp.pad(states, ((0, 0), (0, 0), (0, self.slots - states.shape[2]), (0, 0)))

    def _slot(self, length: jax.Array, columns: int) -> jax.Array:
        return length

    def _shard(self, states: jax.Array) -> jax.Array:
        """Divide the batch over dp and the heads over tp, if they divide evenly."""
        if not self._is_divided:
            return states
        return jax.lax.with_sharding_constraint(states, self.sharding(self.mesh, states.shape))

    @staticmethod
    def sharding(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
        """Of keys or values: [B, K, T, D] with its rows over dp and heads over tp, or [K, T, D]."""
        # Without the batch dimension, the heads come first.
        axes = ("dp", "tp")[4 - len(shape) :]
        entries = [dividing_axis(mesh, axis, size) for axis, size in zip(axes, shape, strict=False)]
        return NamedSharding(mesh, PartitionSpec(*entries))

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

    def _place_prompt(self, states: jax.Array) -> jax.Array:
        length = states.shape[2]
        if length < self.slots:
            return super()._place_prompt(states)
        # Of a longer prompt only the last W positions are kept, each in the slot that the loop will overwrite in turn.
        return jnp.roll(states[:, :, length - self.slots :], (length - self.slots) % self.slots, axis=2)

    def _slot(self, length: jax.Array, columns: int) -> jax.Array:
        # Several tokens might go past the end of the ring, which one slice cannot write.
        if columns != 1:
            raise PortError(
                "a sliding-window cache takes one token a step after the prompt", where=f"{columns} tokens"
            )
        return length % self.slots

    def get_mask_sizes(self, query_length: int) -> tuple[Any, Any]:
        """As FixedLayer; once the ring turns, the first position is a vector [W], slot by slot.

        `transformers_mask` takes it as such.
        """
        if not self.is_initialized:
            return query_length, 0
        # Of the positions that the slot takes, the last one that has been written.
        slots = jnp.arange(self.slots, dtype=jnp.int32)
        length = compat.as_jax(self.length)
        return self.slots, compat.wrap(length - (length - slots) % self.slots - slots)


def _make_layer(layer: Any, length: int, mesh: Mesh | None) -> Any:
    """tpuport's layer in place of transformers'; one of another kind, such as a linear one, stays."""
    if type(layer) is StaticLayer:
        return FixedLayer(length, mesh)
    if type(layer) is not StaticSlidingWindowLayer:
        return layer
    window = layer.max_cache_len
    if window < length:
        return RingLayer(window, mesh)
    # A ring that never turns is a plain array, which needs no positions slot by slot.
    return WindowLayer(length, mesh)


def make_cache(config: PretrainedConfig, length: int, mesh: Mesh | None = None) -> StaticCache:
    """An empty cache for `length` positions, by the layer types of the config; the prompt makes its arrays."""
    cache = StaticCache(config=config, max_cache_len=length)
    cache.layers = [_make_layer(layer, length, mesh) for layer in cache.layers]
    return cache


# Errors of models that do not suit the meta device, or whose config does not make a model.
_MODEL_ERRORS: Final = (
    AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
# Elements that one position takes in each layer, by config; a large model takes a second or two to run.
_elements: dict[Hashable, list[int]] = {}


def kv_cache_bytes(config: PretrainedConfig, batch: int, length: int, dtype: torch.dtype | str) -> int:
    """Bytes of the key/value cache that `generate` makes, over all devices. No weight is allocated for it.

    Sliding-window layers hold min(window, length) positions; layers without attention hold nothing. How many elements
    a position takes, the model itself shows, which runs one token on the meta device: some families share heads, and
    some compress keys and values.

    Args:
        config: a transformers config; its text part is used.
        batch: rows of the batch.
        length: cache length in positions.
        dtype: dtype of keys and values, or its name.

    Raises:
        PortError: a batch or length below 1, no dtype, or a model whose cache does not consist of keys and values.
    """
    sizes = {"batch": batch, "length": length}
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if not _is_count(size)]
    if wrong:
        raise PortError("rows and positions are counted from 1", where=", ".join(wrong))
    torch_dtype = as_torch_dtype(dtype)
    if torch_dtype is None:
        raise PortError("a cache has a dtype", where="dtype=None", fix="give torch.bfloat16 or 'bfloat16'")
    text_config = config.get_text_config(decoder=True)
    layers = _explain_errors(text_config, lambda: make_cache(text_config, length).layers)
    elements = _position_elements(text_config)
    if len(layers) != len(elements):
        raise PortError(
            "the layers of this cache are not those of the model",
            where=type(text_config).__name__,
            fix="generate once, and measure what it takes",
        )
    total = 0
    for layer, count in zip(layers, elements, strict=True):
        if isinstance(layer, FixedLayer):
            total += layer.slots * count
        # A layer without attention keeps no keys; one that does in another form is not counted in positions.
        elif count:
            raise PortError(
                "no formula for the size of this cache", where=type(layer).__name__, fix="measure the arrays"
            )
    return batch * total * torch_dtype.itemsize


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _explain_errors(config: PretrainedConfig, function: Callable[[], Any]) -> Any:
    """The function's result; PortError if the config does not make a model, or the model no such cache."""
    try:
        return function()
    except _MODEL_ERRORS as error:
        raise PortError(
            f"the cache of this model cannot be measured without its weights: {error!r:.200}",
            where=type(config).__name__,
            fix="generate once, and measure what it takes",
        ) from error


def _position_elements(config: PretrainedConfig) -> list[int]:
    """Elements of keys and values together, for one row and one position, of each layer of the cache."""
    key = exact_key(config)
    if key not in _elements:
        _elements[key] = _explain_errors(config, lambda: _measure_position(copy.deepcopy(config)))
    return _elements[key]


def _measure_position(config: PretrainedConfig) -> list[int]:
    # bfloat16, because the grouped product of experts knows no other type on this device.
    with torch.device("meta"), torch.no_grad():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        # Some models look for it among the ids, which have no values here; some configs refuse to be without it.
        vars(model.config)["pad_token_id"] = None
        output = model(input_ids=torch.ones(1, 1, dtype=torch.int64), use_cache=True, return_dict=True)
    return [_count_elements(layer) for layer in output.past_key_values.layers]


def _count_elements(layer: Any) -> int:
    # Layers without attention have neither, or None.
    arrays = getattr(layer, "keys", None), getattr(layer, "values", None)
    return sum(array.numel() for array in filter(torch.is_tensor, arrays))
