"""The cache of the decoding loop, by the layer types of a config; and its size."""

import copy
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    StaticCache,
)
from transformers.cache_utils import CacheLayerMixin

from tpuport import compat
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.generation.cross_layer import CrossLayer
from tpuport.generation.fixed_layers import FixedLayer, RingLayer, WindowLayer
from tpuport.generation.hybrid_layers import (
    HybridLayer,
    HybridRingLayer,
    HybridWindowLayer,
)
from tpuport.generation.indexed_layers import IndexedLayer
from tpuport.generation.option_values import check_kv_cache
from tpuport.internals.mechanism import Mechanism
from tpuport.libraries.library_classes import cache_of_output
from tpuport.objects import pytrees
from tpuport.objects.static_values import exact_key

# Names of transformers' classes, because older releases lack the hybrid ones.
_FULL = {
    "StaticLayer": FixedLayer,
    "StaticIndexedLayer": IndexedLayer,
    "LinearAttentionAndStaticFullAttentionLayer": HybridLayer,
}
# Whether the window ends before the cache does, or not.
_SLIDING = {
    "StaticSlidingWindowLayer": (RingLayer, WindowLayer),
    "LinearAttentionAndStaticSlidingWindowAttentionLayer": (
        HybridRingLayer,
        HybridWindowLayer,
    ),
}


def _make_layer(layer: Any, length: int, mesh: Mesh | None, *, keeps_all: bool) -> Any:
    """tpuport's layer in place of transformers'; one without keys and values, such as a
    linear one, stays.
    """
    name = type(layer).__name__
    options = {}
    if hasattr(layer, "number_of_states"):
        options["number_of_states"] = layer.number_of_states
    if name in _FULL:
        return _FULL[name](length, mesh, **options)
    if name not in _SLIDING:
        return layer
    ring, whole = _SLIDING[name]
    window = layer.max_cache_len
    if window < length and not keeps_all:
        return ring(window, mesh, **options)
    # A ring that never turns is a plain array, which needs no positions slot by slot.
    return whole(length, mesh, **options)


def make_cache(
    config: PretrainedConfig,
    length: int,
    mesh: Mesh | None = None,
    *,
    keeps_all: bool = False,
    kv_cache: str | None = None,
) -> StaticCache:
    """An empty cache for `length` positions, by the layer types of the config; the
    prompt makes its arrays.

    Args:
        keeps_all: layers with a window keep all positions too, so that several tokens
            can be written at once.
        kv_cache: "int8" keeps keys and values in eight bits; None in the model's dtype.

    Raises:
        PortError: int8 for a model with layers of another kind than attention.
    """
    cache = StaticCache(config=config, max_cache_len=length)
    cache.layers = [
        _make_layer(layer, length, mesh, keeps_all=keeps_all) for layer in cache.layers
    ]
    for number in _cross_layers(config):
        cache.layers[number] = CrossLayer(mesh)
    if kv_cache is not None:
        for layer in cache.layers:
            _keep_in_int8(layer)
    return cache


def _keep_in_int8(layer: Any) -> None:
    # Of layers that share the keys and values of another.
    if type(layer).__name__ == "DummyLayer":
        return
    if type(layer) not in (FixedLayer, WindowLayer, RingLayer):
        raise PortError(
            f"kv_cache='int8' is for layers of keys and values alone, and this model has a {type(layer).__name__}",
            where="kv_cache='int8'",
            fix="leave kv_cache out",
        )
    layer.in_int8 = True


def has_cross_layers(config: PretrainedConfig) -> bool:
    """Whether layers between those of the text attend to images, as Mllama's do."""
    return bool(_cross_layers(config))


def _cross_layers(config: PretrainedConfig) -> list[int]:
    return (
        getattr(config.get_text_config(decoder=True), "cross_attention_layers", None)
        or []
    )


def set_length(cache: Any, length: jax.Array) -> Any:
    """Traced. A cache of jax arrays as it was with `length` columns; what comes next is
    written over the others.

    States of a recurrence stay as they are.
    """
    cache = copy.copy(cache)
    cache.layers = list(map(copy.copy, cache.layers))
    for layer in cache.layers:
        if isinstance(layer, FixedLayer):
            # An array, in place of transformers' tensor.
            vars(layer).update(length=length)
        # Some layers take what the indexer of an earlier one has selected.
        if isinstance(layer, IndexedLayer) and layer.indexer_keys is not None:
            vars(layer).update(indexer_length=length)
    return cache


def spread_over_rows(cache: Any, empty_cache: Any, padding: jax.Array) -> Any:
    """Traced. A cache of one row, of jax arrays, in every row of another one, behind
    that row's padding [B].
    """
    for layer, target in zip(cache.layers, empty_cache.layers, strict=True):
        slots = target.slots
        # Columns in front of a row and behind it are hidden, or written later.
        columns = jnp.clip(jnp.arange(slots) - padding[:, None], 0, layer.slots - 1)
        arrays = {
            name: target.spread(array, columns)
            for name, array in layer.arrays().items()
        }
        if isinstance(target, IndexedLayer):
            arrays |= target.spread_indexer(layer, columns)
        vars(target).update(vars(layer), slots=slots, **arrays)
    return empty_cache


def cut_to_windows(cache: Any, empty_cache: Any, columns: int) -> Any:
    """Traced. A cache made with `keeps_all`, of jax arrays with `columns` written, in
    layers made without.
    """
    for layer, ring in zip(cache.layers, empty_cache.layers, strict=True):
        if isinstance(ring, RingLayer):
            window = ring.slots
            # Without the batch, the columns come one dimension earlier.
            axis = layer.keys.ndim - 2
            arrays = {
                name: ring.last_columns(array, columns, axis)
                for name, array in layer.arrays().items()
            }
            vars(ring).update(vars(layer), slots=window, **arrays)
    cache = copy.copy(cache)
    cache.layers = [
        ring if isinstance(ring, RingLayer) else layer
        for layer, ring in zip(cache.layers, empty_cache.layers, strict=True)
    ]
    return cache


def _carries_keys() -> bool:
    """Whether a cache takes keys, goes from one program to the next, and gives them
    back.
    """
    config = LlamaConfig(num_hidden_layers=1, hidden_size=4, num_attention_heads=1)
    pytrees.register()

    def update(cache: StaticCache, array: jax.Array) -> jax.Array:
        states = compat.wrap(array)
        return compat.as_jax(cache.update(states, states, 0)[0])

    def decode(prompt: jax.Array, token: jax.Array) -> jax.Array:
        cache = make_cache(config, 3)
        prefix = update(cache, prompt)
        leaves, structure = jax.tree.flatten(cache)
        cache = jax.tree.unflatten(structure, leaves)
        return prefix.sum() + update(cache, token)

    prompt, token = (
        jax.ShapeDtypeStruct((2, 1, count, 4), "float32") for count in (2, 1)
    )
    with compat.environment():
        return jax.eval_shape(decode, prompt, token).shape == (2, 1, 3, 4)


FIXED_CACHES = Mechanism(
    "caches of fixed shape",
    "transformers",
    rests_on="the attributes of transformers.StaticCache and its layers",
    without="models generate without a cache, and run all tokens again for each new one: the same tokens, more slowly",
    probe=_carries_keys,
)


def has_fixed_cache(config: PretrainedConfig) -> bool:
    """Whether transformers has a layer of fixed shape for every layer type of the
    config.
    """
    if not hasattr(
        config.get_text_config(decoder=True), "num_hidden_layers"
    ):  # BLT has several stacks of layers
        return False
    if not FIXED_CACHES.works():
        return False
    try:
        StaticCache(config=config, max_cache_len=1)
    except LookupError:
        return False
    return True


def _static_layers(config: PretrainedConfig) -> list[Any]:
    """transformers' own layers of fixed shape."""
    return StaticCache(config=config, max_cache_len=1).layers


def has_class_layers(config: PretrainedConfig) -> bool:
    """Whether layers of fixed shape are of a model's own class: Unlimited-OCR's views
    parts of one buffer, which are arrays of their own from one program to the next.
    """
    if not has_fixed_cache(config):
        return False
    modules = {type(layer).__module__ for layer in _static_layers(config)}
    return bool(modules - {StaticCache.__module__})


def has_states(config: PretrainedConfig) -> bool:
    """Whether a layer of the cache keeps states of a recurrence, which have seen every
    column, padding too.
    """
    return any(hasattr(layer, "recurrent_states") for layer in _static_layers(config))


def layer_types_with_window(config: PretrainedConfig) -> set[str]:
    """The types of a config's layers that see a window of positions."""
    if not has_fixed_cache(config):
        return set()
    named = zip(
        getattr(config, "layer_types", None) or (), _static_layers(config), strict=False
    )
    return {name for name, layer in named if getattr(layer, "is_sliding", False)}


def has_attention(config: PretrainedConfig) -> bool:
    """Whether a layer of the cache keeps keys and values."""
    return any(isinstance(layer, CacheLayerMixin) for layer in _static_layers(config))


# Errors of models that do not suit the meta device, or whose config does not make a
# model.
_MODEL_ERRORS: Final = (
    AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class _PositionSize(NamedTuple):
    """Of one row's position in one layer: elements of keys and values together, and
    their scales in int8.
    """

    elements: int
    scales: int

    def nbytes(self, itemsize: int, *, in_int8: bool) -> int:
        """Bytes, in a dtype of so many."""
        return (
            self.elements + self.scales * itemsize
            if in_int8
            else self.elements * itemsize
        )


# By config and layer; a large model takes a second or two to run.
_sizes: dict[Hashable, list[_PositionSize]] = {}


def kv_cache_bytes(
    config: PretrainedConfig,
    batch: int,
    length: int,
    dtype: torch.dtype | str,
    *,
    kv_cache: str | None = None,
) -> int:
    """Bytes of the key/value cache that `generate` makes, over all devices. No weight
    is allocated for it.

    Sliding-window layers hold min(window, length) positions; layers without attention
    hold nothing. How many elements a position takes, the model itself shows, which runs
    one token on the meta device: some families share heads, and some compress keys and
    values.

    Args:
        config: a transformers config; its text part is used.
        batch: rows of the batch.
        length: cache length in positions.
        dtype: dtype of keys and values, or its name.
        kv_cache: as in `generate`: "int8" takes a byte for each number, and one number
            of `dtype` for each position and head as the scale.

    Raises:
        PortError: a batch or length below 1, no dtype, or a model whose cache does not
            consist of keys and values.
    """
    check_kv_cache(kv_cache)
    sizes = {"batch": batch, "length": length}
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if not _is_count(size)]
    if wrong:
        raise PortError("rows and positions are counted from 1", where=", ".join(wrong))
    torch_dtype = as_torch_dtype(dtype)
    if torch_dtype is None:
        raise PortError(
            "a cache has a dtype",
            where="dtype=None",
            fix="give torch.bfloat16 or 'bfloat16'",
        )
    text_config = config.get_text_config(decoder=True)
    layers = _explain_errors(
        text_config, lambda: make_cache(text_config, length, kv_cache=kv_cache).layers
    )
    sizes_by_layer = _position_sizes(text_config)
    if len(layers) != len(sizes_by_layer) or not has_attention(text_config):
        raise PortError(
            "the layers of this cache are not those of the model",
            where=type(text_config).__name__,
            fix="generate once, and measure what it takes",
        )
    total = 0
    for layer, size in zip(layers, sizes_by_layer, strict=True):
        if isinstance(layer, FixedLayer) and not isinstance(layer, HybridLayer):
            total += layer.slots * size.nbytes(
                torch_dtype.itemsize, in_int8=layer.in_int8
            )
        # A layer without attention keeps no keys; one that does in another form is not
        # counted in positions.
        elif size.elements or isinstance(layer, CrossLayer):
            raise PortError(
                "no formula for the size of this cache",
                where=type(layer).__name__,
                fix="measure the arrays",
            )
    return batch * total


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _explain_errors(config: PretrainedConfig, function: Callable[[], Any]) -> Any:
    """The function's result; PortError if the config does not make a model, or the
    model no such cache.
    """
    try:
        return function()
    except _MODEL_ERRORS as error:
        raise PortError(
            f"the cache of this model cannot be measured without its weights: {error!r:.200}",
            where=type(config).__name__,
            fix="generate once, and measure what it takes",
        ) from error


def _position_sizes(config: PretrainedConfig) -> list[_PositionSize]:
    """For each layer of the cache."""
    key = exact_key(config)
    if key not in _sizes:
        _sizes[key] = _explain_errors(
            config, lambda: _measure_position(copy.deepcopy(config))
        )
    return _sizes[key]


def position_elements(config: PretrainedConfig) -> list[int]:
    """How many numbers one row's position takes, for each layer of the cache."""
    return [size.elements for size in _position_sizes(config)]


def _measure_position(config: PretrainedConfig) -> list[_PositionSize]:
    # bfloat16, because the grouped product of experts knows no other type on this
    # device.
    with torch.device("meta"), torch.no_grad():
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16
        ).eval()
        # Some models look for it among the ids, which have no values here; some configs
        # refuse to be without it.
        vars(model.config)["pad_token_id"] = None
        output = model(
            input_ids=torch.ones(1, 1, dtype=torch.int64),
            use_cache=True,
            return_dict=True,
        )
    return list(map(_measure_layer, cache_of_output(output).layers))


def _measure_layer(layer: Any) -> _PositionSize:
    # Layers without attention have neither, or None.
    states = [getattr(layer, "keys", None), getattr(layer, "values", None)]
    arrays = [array for array in states if torch.is_tensor(array)]
    return _PositionSize(
        elements=sum(array.numel() for array in arrays),
        scales=sum(array.numel() // max(array.shape[-1], 1) for array in arrays),
    )
