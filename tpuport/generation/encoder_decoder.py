"""The decoding loop of encoder-decoders: the encoder runs once, in the prompt's
program.

What it gives, its mask, and the keys and values of cross-attention are in the loop's
carry, and no token changes them. Shapes: B batch, S columns of the encoder's output, P
decoder's prompt, T cache length, V vocabulary.
"""

import copy
import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from transformers import EncoderDecoderCache, PretrainedConfig
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput

from tpuport import compat
from tpuport.base.mappings import only
from tpuport.compilation import use_weights_in_loop
from tpuport.generation import model_inputs
from tpuport.generation.cache_arguments import add_written_columns
from tpuport.generation.cross_layer import CrossLayer
from tpuport.generation.decoder import LOOP, Decoder
from tpuport.generation.decoding_cache import make_cache, set_length
from tpuport.generation.forward_signature import forward_parameters
from tpuport.generation.loop_state import Arrays, PaddedPrompt, State, shard_rows
from tpuport.generation.position_tables import fixed_tables
from tpuport.libraries import model_facts
from tpuport.libraries.library_classes import cache_of_output
from tpuport.patches.without_cache import as_with_cache

# Inputs that are the encoder's alone, whose output the decoder gets instead.
_ENCODER_ONLY = frozenset({"input_ids", "inputs_embeds"})
# Whose configs a model of two models has.
_PARTS = ("encoder", "decoder")
# Given by the user instead of the encoder's inputs: its last hidden state.
ENCODER_OUTPUTS = "encoder_outputs"


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class EncodedCache:
    """The decoder's cache, and what the encoder gave.

    Attributes:
        cache: an `EncoderDecoderCache`; empty for a model that runs without one.
        encoder_outputs: of the model's encoder, the last hidden state [B, S, E] first.
        inputs: of the decoder, by the names in the model's signature, such as the
            encoder's attention_mask [B, S].
    """

    cache: Any
    encoder_outputs: Any
    inputs: Arrays


class EncoderDecoder(Decoder):
    """The compiled programs of a ported encoder-decoder of transformers."""

    takes_kv_cache = False

    def __init__(self, model: Any, mesh: Mesh) -> None:
        super().__init__(model, mesh)
        self._encoder_parameters = inspect.signature(
            model.get_encoder().forward
        ).parameters
        self._decoder_parameters = inspect.signature(
            model.get_decoder().forward
        ).parameters

    @classmethod
    def input_names(cls, model: Any) -> frozenset[str]:
        """Of the model's and its encoder's signature."""
        parameters = forward_parameters(model)
        parameters |= inspect.signature(model.get_encoder().forward).parameters
        return model_inputs.input_names(parameters) - {
            "encoder_hidden_states",
            "encoder_attention_mask",
        }

    @property
    def uses_buckets(self) -> bool:
        """Only of models that count positions by the mask. Most decoders begin with one
        token, and count columns.
        """
        return self._counts_by_mask

    def forward_prompt(
        self, arrays: Arrays, prompt: PaddedPrompt
    ) -> tuple[jax.Array, EncodedCache]:
        """Traced. Run the encoder and the decoder's prompt [B, P]: float32 logits
        [B, V], and what the loop carries.
        """
        inputs = dict(prompt.inputs) | {
            name: shard_rows(self.mesh, array)
            for name, array in model_inputs.arrays_of(prompt.inputs).items()
        }
        encoded = EncodedCache(
            cache=() if self._is_uncached else self._make_cache(prompt.slots),
            encoder_outputs=self._encode(arrays, inputs),
            inputs={
                name: array
                for name, array in inputs.items()
                if self._is_of_decoder(name)
            },
        )
        return self._decode(arrays, prompt.tokens, prompt.mask, encoded)

    def forward_token(
        self, arrays: Arrays, state: State
    ) -> tuple[jax.Array, EncodedCache]:
        """Traced. As `forward_prompt`, for the token chosen last."""
        column = state.length - 1
        if self._is_uncached:
            # Later columns, which are not written yet, are hidden by the decoder's
            # causal mask.
            with as_with_cache(self.model):
                return self._decode(
                    arrays, state.tokens, state.present, state.cache, index=column
                )
        token = jax.lax.dynamic_slice_in_dim(state.tokens, column, 1, axis=1)
        present = state.present & (jnp.arange(state.present.shape[1]) <= column)
        return self._decode(arrays, token, present, state.cache, first=column)

    @property
    def takes_drafts(self) -> bool:
        """Whether several tokens go on from the cache at once: positions are those of
        the tokens, not of the cache.
        """
        return self._counts_by_mask

    def forward_tokens(
        self,
        arrays: Arrays,
        tokens: jax.Array,
        present: jax.Array,
        column: jax.Array,
        end: jax.Array,
        cache: EncodedCache,
        *,
        only_last: bool = False,
    ) -> tuple[jax.Array, EncodedCache]:
        """Traced. As `Decoder.forward_tokens`."""
        written = jnp.minimum(column + tokens.shape[1], end)
        mask = present & (jnp.arange(present.shape[1]) < written)
        both = copy.copy(cache.cache)
        both.self_attention_cache = set_length(both.self_attention_cache, column)
        cache = dataclasses.replace(cache, cache=both)
        logits, cache = self._decode(
            arrays, tokens, mask, cache, first=column, index=None
        )
        return (logits[:, -1:] if only_last else logits), cache

    def reorder_cache(self, cache: EncodedCache, rows: jax.Array) -> EncodedCache:
        """Traced. Of the decoder's own columns alone: all beams of a prompt have one
        text.
        """
        if self._is_uncached:
            return cache
        both = copy.copy(cache.cache)
        both.self_attention_cache = super().reorder_cache(
            both.self_attention_cache, rows
        )
        return dataclasses.replace(cache, cache=both)

    def _positions(
        self, tokens: jax.Array, mask: jax.Array, first: jax.Array | int
    ) -> Arrays:
        """Traced. The argument with positions, for models that do not make them of the
        cache's length themselves.
        """
        count = tokens.shape[1]
        if self._counts_by_mask:
            positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
            # Of a single token, which is the last, that of all columns to come is the
            # same.
            if 1 < count < mask.shape[1]:
                return {
                    "decoder_position_ids": jax.lax.dynamic_slice_in_dim(
                        positions, first, count, axis=1
                    )
                }
            return {"decoder_position_ids": positions[:, -count:]}
        if self._is_of_two_models and "position_ids" in self._decoder_parameters:
            # BERT's would cut them out of a table, whose bounds would be tensors.
            return {
                "decoder_position_ids": jnp.arange(count, dtype=jnp.int32)[None] + first
            }
        return {}

    @property
    def _is_of_two_models(self) -> bool:
        """Whether it is any encoder with any decoder, to which go the arguments that
        begin with "decoder_".
        """
        configs = (getattr(self.model.config, part, None) for part in _PARTS)
        return "decoder_position_ids" not in self._parameters and all(
            isinstance(config, PretrainedConfig) for config in configs
        )

    @property
    def _counts_by_mask(self) -> bool:
        return self.model.config.model_type in model_facts.COUNTING_BY_MASK

    @property
    def _is_uncached(self) -> bool:
        return self.model.config.model_type in model_facts.UNCACHED

    def _make_cache(self, slots: int) -> EncoderDecoderCache:
        """An empty cache for `slots` tokens."""
        config = self.model.config.get_text_config(decoder=True)
        self_attention = make_cache(
            config, slots, self.mesh, keeps_all=self.keeps_all_columns
        )
        cross_attention = Cache(
            layers=[CrossLayer(self.mesh) for _ in self_attention.layers]
        )
        return EncoderDecoderCache(self_attention, cross_attention)

    def _is_of_decoder(self, name: str) -> bool:
        main_name = getattr(self.model, "main_input_name", "input_ids")
        return name in self._parameters and name not in _ENCODER_ONLY | {
            main_name,
            ENCODER_OUTPUTS,
        }

    def _encode(self, arrays: Arrays, inputs: Arrays) -> Any:
        """Traced. The encoder's outputs as arrays."""
        if ENCODER_OUTPUTS in inputs:
            return BaseModelOutput(last_hidden_state=inputs[ENCODER_OUTPUTS])  # type: ignore[arg-type]
        arguments = {
            name: model_inputs.as_argument(value)
            for name, value in inputs.items()
            if name in self._encoder_parameters and not name.startswith("decoder_")
        }
        with use_weights_in_loop(self.model, arrays, LOOP):
            outputs = self.model.get_encoder()(**arguments, return_dict=True)
        return compat.as_jax(outputs)

    def _decode(
        self,
        arrays: Arrays,
        tokens: jax.Array,
        mask: jax.Array,
        encoded: EncodedCache,
        *,
        first: jax.Array | int = 0,
        index: jax.Array | int | None = -1,
    ) -> tuple[jax.Array, EncodedCache]:
        """Traced. Float32 logits [B, V] of one of the tokens, and the cache written.

        Args:
            mask: [B, T] or, of the prompt, [B, P]; False at padding and at columns to
                come.
            first: the column of the first of the tokens; index: of the token among
                them, None for all, [B, P, V].
        """
        arguments = {"decoder_input_ids": tokens, "decoder_attention_mask": mask}
        arguments = only(arguments, self._parameters)
        arguments |= self._positions(tokens, mask, first)
        add_written_columns(arguments, self._parameters, lambda: first, tokens.shape[1])
        if self.model.config.model_type in model_facts.MASKING_BY_TEXT:
            arguments["input_ids"] = tokens
        given = encoded.inputs | arguments
        cache = {}
        if not self._is_uncached:
            cache[self._cache_argument] = compat.as_torch(encoded.cache)
        with use_weights_in_loop(self.model, arrays, LOOP), fixed_tables(self.model):
            output = self.model(
                **{
                    name: model_inputs.as_argument(value)
                    for name, value in given.items()
                },
                encoder_outputs=compat.as_torch(encoded.encoder_outputs),
                **cache,
                use_cache=not self._is_uncached,
                return_dict=True,
            )
        logits = compat.as_jax(output.logits)
        if index is not None:
            logits = jax.lax.dynamic_index_in_dim(logits, index, axis=1, keepdims=False)
        written = () if self._is_uncached else compat.as_jax(cache_of_output(output))
        return logits.astype(jnp.float32), dataclasses.replace(encoded, cache=written)
