"""The decoding loop of models that make their cache themselves: states of a recurrence,
under an argument's own name.

The prompt's call makes the cache, transformers' own functions say under which name the
next call takes it (`cache_params`, `state`), and the loop carries its tensors. A layer
of keys and values in it gets a fixed shape. Shapes: B batch, P prompt columns, V
vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers.cache_utils import Cache, DynamicLayer

from tpuport import compat
from tpuport.base.mappings import only
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import use_weights_in_loop
from tpuport.errors import PortError
from tpuport.generation.decoder import LOOP, Decoder
from tpuport.generation.fixed_layers import FixedLayer, UnusedLayer
from tpuport.generation.loop_state import Arrays, PaddedPrompt, State
from tpuport.generation.model_inputs import prepare_inputs
from tpuport.generation.padding_check import hides_padding
from tpuport.generation.residual_stream import summed_once
from tpuport.generation.row_caches import (
    RowCaches,
    check_unchanged,
    put_together,
    take_apart,
)
from tpuport.hardware.mesh import dividing_axis
from tpuport.internals.transformers_internals import update_arguments


class RecurrentDecoder(Decoder):
    """The compiled programs of a model that makes its cache itself."""

    takes_kv_cache = False
    # What a prompt's trace finds out: see `_replace_unused_first_layer`.
    _first_layer_is_unused = False

    @property
    def uses_buckets(self) -> bool:
        """Whether the model ignores padding, which its first call finds out: see
        `hides_padding`.
        """
        if self._hides_padding is None:
            self._hides_padding = hides_padding(self)
        return self._hides_padding and not self._first_layer_is_unused

    def forward_prompt(
        self, arrays: Arrays, prompt: PaddedPrompt
    ) -> tuple[jax.Array, RowCaches]:
        """Traced. Float32 logits [B, V] after the prompt [B, P], and the tensors of the
        cache with it.
        """
        tokens, mask, slots, *_ = prompt
        positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
        with (
            trace_lock,
            summed_once(self.model, self.mesh),
            use_weights_in_loop(self.model, arrays, LOOP),
        ):
            logits, cache = self._call(tokens, mask, positions, {})
            for value in cache.values():
                if isinstance(value, Cache):
                    value.layers = [
                        _fix_shape(layer, slots, self.mesh) for layer in value.layers
                    ]
                    self._replace_unused_first_layer(value, slots)
            carried = self._carry(cache)
        return logits, carried

    def forward_token(
        self, arrays: Arrays, state: State
    ) -> tuple[jax.Array, RowCaches]:
        """Traced. As `forward_prompt`, for the token chosen last."""
        token, present, position = self.token_inputs(state)
        with use_weights_in_loop(self.model, arrays, LOOP):
            cache = put_together(state.cache.arrays, state.cache.layout)
            if self._first_layer_is_unused:
                present = _as_one_key(present)
            logits, cache = self._call(token, present, position, cache)
            carried = self._carry(cache)
        check_unchanged(
            state.cache.layout,
            carried.layout,
            fix="decode with your own loop over tpuport.compile(model)",
        )
        return logits, carried

    def _call(
        self,
        tokens: jax.Array,
        mask: jax.Array,
        positions: jax.Array,
        cache: dict[str, Any],
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Traced. Float32 logits [B, V] of the last column, and the cache by the name
        of its argument.
        """
        inputs = compat.as_torch({"attention_mask": mask, "position_ids": positions})
        inputs = only(inputs, self._parameters)
        if "logits_to_keep" in self._parameters:
            inputs["logits_to_keep"] = 1
        is_prompt = not cache
        prepared = prepare_inputs(
            self.model, tokens, next_sequence_length=None if is_prompt else 1, is_first_iteration=is_prompt,
            use_cache=True, **inputs, **cache,
        )  # fmt: skip
        out = self.model(**prepared, return_dict=True)
        new_cache = update_arguments(self.model, out, {})
        if not new_cache:
            raise PortError(
                f"the output of {type(self.model).__name__} has no cache that the next token could go on from",
                where=type(self.model).__name__,
                fix="decode with your own loop over tpuport.compile(model)",
            )
        return compat.as_jax(out.logits)[:, -1].astype(jnp.float32), new_cache

    def _replace_unused_first_layer(self, cache: Cache, slots: int) -> None:
        """Traced. Give the mask of later tokens the columns of the attention layers.

        transformers asks the first layer how many keys there are. MiniMax's first layer
        keeps its state elsewhere, and leaves that one empty: the mask is then that of
        the first column for all of them, so that its padding matters.
        """
        has_attention = any(isinstance(layer, FixedLayer) for layer in cache.layers)
        # transformers counts the distance to one key, where a window would count that
        # to each column.
        config = self.model.config.get_text_config(decoder=True)
        if getattr(config, "sliding_window", None) is not None:
            return
        if has_attention and type(cache.layers[0]) is DynamicLayer:
            cache.layers[0] = UnusedLayer(slots)
            self._first_layer_is_unused = True

    def _carry(self, cache: dict[str, Any]) -> RowCaches:
        """Traced. The cache as the loop's carry."""
        arrays, layout = take_apart(cache)
        return RowCaches(list(map(self._shard_state, arrays)), layout)

    def _shard_state(self, array: jax.Array) -> jax.Array:
        """Traced. Divide the batch over dp, and what comes next over tp: heads, or the
        channels of a convolution.
        """
        if self.mesh.size == 1:
            return array
        return jax.lax.with_sharding_constraint(
            array, state_sharding(self.mesh, array.shape)
        )


def _as_one_key(present: jax.Array) -> jax.Array:
    """Traced. The columns [B, T] that a row sees where transformers makes the mask for
    a single key: all of them if the first one is not padding, else none.
    """
    return present & present[:, :1]


def state_sharding(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
    """Of an array of the cache: its rows over dp, and what comes next over tp, if they
    divide evenly.
    """
    # A counter, with one dimension or none, has no rows.
    axes = zip(("dp", "tp"), shape, strict=False) if len(shape) > 1 else ()
    return NamedSharding(
        mesh, PartitionSpec(*(dividing_axis(mesh, axis, size) for axis, size in axes))
    )


def _fix_shape(layer: Any, slots: int, mesh: Any) -> Any:
    """Traced. A layer of `slots` columns in place of one that grows with each token;
    others stay.
    """
    if type(layer) is not DynamicLayer or not layer.is_initialized:
        return layer
    fixed = FixedLayer(slots, mesh)
    fixed.update(layer.keys, layer.values)  # type: ignore[arg-type]
    return fixed
