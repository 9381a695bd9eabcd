"""A cache that the caller gives to `generate`: checked and taken apart, and written
back in the caller's own object.

Shapes: B rows, K key/value heads, A columns of an array, D head dimension.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from tpuport import compat
from tpuport.base.plurals import count_noun
from tpuport.compilation import refuse_retired
from tpuport.errors import PortError
from tpuport.generation.decoding_cache import position_elements
from tpuport.generation.fixed_layers import FixedLayer, WindowLayer
from tpuport.generation.grown_layers import GrownLayer, GrownWindowLayer, grow
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.prompts import bucket_length

_WHERE = "cache"
_KINDS = {
    DynamicLayer: DynamicLayer,
    GrownLayer: DynamicLayer,
    DynamicSlidingWindowLayer: DynamicSlidingWindowLayer,
    GrownWindowLayer: DynamicSlidingWindowLayer,
    StaticLayer: StaticLayer,
    StaticSlidingWindowLayer: StaticSlidingWindowLayer,
}
States = dict[str, jax.Array]


class LayerForm(NamedTuple):
    """What a layer of a caller's cache keeps.

    Attributes:
        window: the last so many columns; None for all.
        size: columns of its arrays, if they are fixed.
    """

    window: int | None
    size: int | None

    def first_column(self, columns: Any) -> Any:
        """The first that is kept, of so many."""
        return 0 if self.window is None else jnp.maximum(columns - self.window, 0)


class CallersCache:
    """A cache of keys and values.

    Attributes:
        cache: the caller's object.
        columns: how many are written; unknown: of how many the tokens are not given.
    """

    def __init__(self, cache: Any, decoder: Any) -> None:
        """Check that `generate` can go on with a cache.

        Raises:
            NoLoop: it has layers of other kinds; transformers' own loop takes it.
            PortError: it is that of another model, or has been donated.
        """
        refuse_retired(cache, _WHERE)
        self.cache = cache
        loop_layers = decoder.make_cache(1, keeps_all=True).layers
        self._check_kinds(loop_layers)
        if not cache.layers:
            cache.layers.extend(DynamicLayer() for _ in loop_layers)
        self.forms = tuple(map(_form, cache.layers))
        lengths = {_columns(layer) for layer in cache.layers}
        if len(lengths) > 1 or len(cache.layers) != len(loop_layers):
            raise _of_another_model(
                f"{count_noun(len(cache.layers), 'layer')} of {lengths} columns"
            )
        self.columns, self.unknown = lengths.pop(), 0
        if self.columns:
            self._check_states(decoder.model)

    def _check_kinds(self, loop_layers: list[Any]) -> None:
        is_plain = type(self.cache) in (DynamicCache, StaticCache)
        is_plain &= not getattr(self.cache, "offloading", False)
        layers = [*self.cache.layers, *loop_layers] if is_plain else []
        others = {
            type(layer).__name__
            for layer in layers
            if type(layer) not in (*_KINDS, FixedLayer, WindowLayer)
            or getattr(layer, "record_past", False)
        }
        if not is_plain or others:
            raise NoLoop(
                "the loop on the device goes on with layers of keys and values alone, and this cache is a "
                f"{', '.join(sorted(others)) or type(self.cache).__name__}",
                where=_WHERE,
                fix="give a DynamicCache or a StaticCache",
            )

    def _check_states(self, model: Any) -> None:
        elements = position_elements(model.config.get_text_config(decoder=True))
        for layer, expected in zip(self.cache.layers, elements, strict=True):
            states = _whole_states(layer)
            for state in states.values():
                array = compat.as_jax(state)
                if isinstance(array, jax.Array) and array.is_deleted():
                    raise PortError(
                        "this cache was donated to an earlier call, whose output has its memory now",
                        where=_WHERE,
                        fix="go on with the cache in that call's output, or give each call a copy.deepcopy(cache)",
                    )
            sizes = [state.shape[-3] * state.shape[-1] for state in states.values()]
            dtypes = {state.dtype for state in states.values()}
            if sum(sizes) != expected:
                raise _of_another_model(
                    f"{sum(sizes)} numbers for a position, of {expected}"
                )
            if dtypes != {model.dtype}:
                raise _of_another_model(", ".join(map(str, dtypes)))

    def add_past(self, tokens: torch.Tensor, mask: Any) -> torch.Tensor:
        """The whole text [B, columns], with some tokens in place of unknown ones.

        As in transformers, a mask of more columns than there are tokens says that these
        are the new ones.
        """
        columns = tokens.shape[1] if mask is None else np.shape(mask)[-1]
        if columns != tokens.shape[1]:
            self.unknown = self.columns
            # Its own last token is one that each processor of scores knows already.
            past = tokens[:, -1:].expand(-1, self.unknown)
            tokens = torch.cat([past, tokens], dim=1)
        if tokens.shape[1] <= self.columns:
            raise PortError(
                f"the cache has {self.columns} columns, and the text {tokens.shape[1]}: there is nothing new",
                where=_WHERE,
                fix="give the whole text, or new tokens and an attention_mask of what is in the cache and them",
            )
        return tokens

    @property
    def rows(self) -> int | None:
        """Of what is written; None if nothing is."""
        if not self.columns:
            return None
        layer = self.cache.layers[0]
        return getattr(layer, "rows", None) or layer.keys.shape[0]

    @property
    def most_columns(self) -> int | None:
        """That fit; None if it grows."""
        sizes = [form.size for form in self.forms if form.size and form.window is None]
        return min(sizes, default=None)

    def states(self, rows: int, mesh: Any) -> tuple[States, ...] | None:
        """The arrays of each layer, [rows, K, A, D] or [K, A, D] each, on the devices;
        None if nothing is written.

        Arrays that were longer stay as they are, others get a length that many have.
        """
        if not self.columns:
            return None
        return tuple(
            {
                name: _on_mesh(_pad(state, form, rows), mesh)
                for name, state in _whole_states(layer).items()
            }
            for layer, form in zip(self.cache.layers, self.forms, strict=True)
        )

    def write(self, cache: Any, columns: int, rows: int) -> None:
        """Take so many columns and rows of the loop's cache, of jax arrays."""
        for layer, form, own in zip(
            self.cache.layers, self.forms, cache.layers, strict=True
        ):
            states = own.arrays()
            if form.window is not None or form.size is not None:
                cut = functools.partial(_cut, form=form, rows=rows)
                states = {
                    name: cut(array, jnp.int32(columns))
                    for name, array in states.items()
                }
            kept = columns if form.window is None else min(columns, form.window)
            if form.size is None:
                grow(layer, states, rows, kept)
            else:
                _write_static(layer, states, columns)
            if hasattr(layer, "cumulative_length") and form.size is None:
                layer.cumulative_length = columns


def fill(
    cache: Any, states: tuple[States, ...], forms: tuple[LayerForm, ...], columns: Any
) -> Any:
    """Traced. The loop's empty cache with what a caller's cache has in so many
    columns.
    """
    for layer, arrays, form in zip(cache.layers, states, forms, strict=True):
        first = form.first_column(columns)
        whole = {}
        for name, array in arrays.items():
            axis = array.ndim - 2
            kept = jax.lax.slice_in_dim(
                array, 0, min(form.window or layer.slots, array.shape[axis]), axis=axis
            )
            shape = (*array.shape[:axis], layer.slots, array.shape[-1])
            if kept.shape != shape:
                empty = jnp.zeros(shape, array.dtype)
                kept = jax.lax.dynamic_update_slice_in_dim(
                    empty, kept, first, axis=axis
                )
            whole[name] = kept
        vars(layer).update(whole, is_initialized=True, length=columns)
    return cache


def _form(layer: Any) -> LayerForm:
    kind = _KINDS[type(layer)]
    if kind is DynamicSlidingWindowLayer:
        return LayerForm(layer.sliding_window - 1, None)
    if kind is StaticSlidingWindowLayer:
        return LayerForm(layer.max_cache_len, layer.max_cache_len)
    return LayerForm(None, layer.max_cache_len if kind is StaticLayer else None)


def _columns(layer: Any) -> int:
    return int(layer.get_seq_length())


def _whole_states(layer: Any) -> Mapping[str, Any]:
    whole = vars(layer).get("whole_states")
    return whole or {"keys": layer.keys, "values": layer.values}


def _pad(state: Any, form: LayerForm, rows: int) -> Any:
    """A layer's tensor with more columns, of a number that many lengths share, and so
    many rows; as the loop stores it.
    """
    if state.ndim == len("KAD"):
        return compat.as_jax(state)
    columns, more_rows = state.shape[2], rows - state.shape[0]
    size = columns if form.size is not None else bucket_length(columns)
    array: Any = state
    if not compat.is_ported(state):
        # On the host, where a new length compiles nothing.
        array = torch.nn.functional.pad(state, (0, 0, 0, size - columns))
        array = torch.cat([array, *[array[-1:]] * more_rows])
        array = compat.to_jax(array.contiguous())
    else:
        array = compat.as_jax(state)
        if size != columns:
            array = jnp.pad(array, ((0, 0), (0, 0), (0, size - columns), (0, 0)))
        if more_rows > 0:
            array = jnp.pad(array, ((0, more_rows), *[(0, 0)] * 3), mode="edge")
    return array[0] if rows == 1 else array


def _on_mesh(array: jax.Array, mesh: Any) -> jax.Array:
    return jax.device_put(array, FixedLayer.sharding(mesh, array.shape, len("BKAD")))


@functools.partial(jax.jit, static_argnames=("form", "rows"))
def _cut(array: jax.Array, columns: jax.Array, *, form: LayerForm, rows: int) -> Any:
    """Traced. What a layer keeps of so many columns of an array [B, K, T, D]; zeros
    behind them.
    """
    if form.size is not None:
        array = array[None] if array.ndim == len("KTD") else array[:rows]
    axis = array.ndim - 2
    size = form.size or min(form.window or 0, array.shape[axis])
    missing = max(size - array.shape[axis], 0)
    pads = [(0, 0)] * array.ndim
    pads[axis] = (0, missing)
    first = form.first_column(columns)
    array = jax.lax.dynamic_slice_in_dim(jnp.pad(array, pads), first, size, axis=axis)
    is_written = jnp.arange(size)[:, None] < columns - first
    return jnp.where(is_written, array, 0)


def _write_static(layer: Any, states: States, columns: int) -> None:
    keys, values = states["keys"], states["values"]
    vars(layer).update(
        keys=compat.wrap(keys),
        values=compat.wrap(values),
        cumulative_length=compat.wrap(jnp.int32(columns), torch.int64),
        is_initialized=True,
        device=torch.device("jax"),
        batch_size=keys.shape[0],
        num_heads=keys.shape[1],
        k_head_dim=keys.shape[-1],
        v_head_dim=values.shape[-1],
    )
    if hasattr(layer, "cumulative_length_int"):
        layer.cumulative_length_int = columns


def _of_another_model(what: str) -> PortError:
    return PortError(
        f"this cache is not one of the model: it has {what}",
        where=_WHERE,
        fix="give an empty one, DynamicCache(config=model.config), or one that this model has filled",
    )
