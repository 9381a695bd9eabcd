"""The decoding loop of models without a cache that a loop can carry: all tokens so far
run for each new one.

They run in the loop's buffer, whose columns behind the last token contain nothing yet.
That these change no logits is verified before the first call, since not every model
hides them. Shapes: B batch, P prompt columns, T columns of the buffer, V vocabulary.
"""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import DynamicCache

from tpuport import compat
from tpuport.base.mappings import only
from tpuport.compilation import use_weights_in_loop
from tpuport.generation.decoder import LOOP, Decoder
from tpuport.generation.decoding_cache import has_fixed_cache
from tpuport.generation.loop_state import Arrays, PaddedPrompt, State
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.model_inputs import vocabulary_size
from tpuport.generation.padding_check import are_close
from tpuport.internals.transformers_internals import update_arguments
from tpuport.patches.without_cache import as_with_cache

logger = logging.getLogger("tpuport")

# Tokens of the prompt that is compared, and columns of padding in front of it.
_TOKENS, _PADDING, _COLUMNS = 19, 5, 32


class RecomputingDecoder(Decoder):
    """The compiled programs of a model that runs without a cache."""

    takes_kv_cache = False

    @property
    def uses_buckets(self) -> bool:
        """Whether the model hides padding in front of a prompt, as `verify` has found
        out.

        Not for kinds of layers that are unknown here: they may divide columns into
        blocks longer than its prompt.
        """
        return (
            self.takes_padding
            and bool(self._hides_padding)
            and has_fixed_cache(self.model.config)
        )

    def forward_prompt(
        self, arrays: Arrays, prompt: PaddedPrompt
    ) -> tuple[jax.Array, tuple[()]]:
        """Traced. Float32 logits [B, V] after the prompt [B, P], and no cache."""
        last = jnp.asarray(prompt.tokens.shape[1] - 1, jnp.int32)
        return self._logits(arrays, prompt.tokens, prompt.mask, last), ()

    def forward_token(
        self, arrays: Arrays, state: State
    ) -> tuple[jax.Array, tuple[()]]:
        """Traced. As `forward_prompt`, for the token chosen last."""
        _, present, _ = self.token_inputs(state)
        with as_with_cache(self.model):
            return self._logits(arrays, state.tokens, present, state.length - 1), ()

    def _logits(
        self, arrays: Arrays, tokens: jax.Array, mask: jax.Array, column: jax.Array
    ) -> jax.Array:
        """Traced. Float32 logits [B, V] after the last of the tokens [B, T] that has
        been written, in `column`.
        """
        columns = tokens.shape[1]
        # Some models count the tokens that are not padding, and read no mask.
        tokens = jnp.where(
            jnp.arange(columns) <= column, tokens, _padding_id(self.model.config)
        )
        positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
        inputs = compat.as_torch({"attention_mask": mask, "position_ids": positions})
        inputs = only(inputs, self._parameters)
        if "use_cache" in self._parameters:
            inputs["use_cache"] = False
        if "logits_to_keep" in self._parameters:
            inputs["logits_to_keep"] = compat.wrap(column[None])
        with use_weights_in_loop(self.model, arrays, LOOP):
            prepared = self.model.prepare_inputs_for_generation(
                compat.wrap(tokens), is_first_iteration=True, **inputs
            )
            added = prepared["input_ids"].shape[1] - columns
            if added:
                # The model puts tokens behind the last one, and the logits of these are
                # the next token's.
                prepared = _move_added(prepared, columns, added, column)
                prepared.pop("logits_to_keep", None)
                column = column + added
            out = self.model(**prepared, return_dict=True)
        logits = compat.as_jax(out.logits).astype(jnp.float32)
        if logits.shape[1] == 1:
            return logits[:, 0]
        return jax.lax.dynamic_index_in_dim(logits, column, axis=1, keepdims=False)

    def verify(self) -> None:
        """Run a prompt by itself and in a longer buffer, and a token after it as the
        model does, which must all agree.

        Raises:
            PortError: logits depend on columns behind the last token, or are others
                with the model's own cache.
        """
        tokens = self._example_tokens()
        expected = self._logits_of_example(tokens, padding=0, columns=_TOKENS)
        self._hides_padding = are_close(
            self, expected, self._logits_of_example(tokens, _PADDING, _COLUMNS)
        )
        if not self._hides_padding and not are_close(
            self, expected, self._logits_of_example(tokens, 0, _COLUMNS)
        ):
            raise NoLoop(
                f"the logits of {type(self.model).__name__} depend on columns behind the last token, and it has no "
                "cache of a fixed shape",
                where=type(self.model).__name__,
                fix="use transformers' own generate, after tpuport.to_cpu(model)",
            )
        if self._cache_argument is not None:
            self._verify_cached(tokens)

    def _example_tokens(self) -> np.ndarray:
        """Token ids, all different as far as the vocabulary goes, and none of them
        padding.
        """
        vocabulary = vocabulary_size(self.model)
        tokens = np.arange(1, _TOKENS + 1, dtype=np.int32) % vocabulary
        tokens[tokens == _padding_id(self.model.config)] = (_TOKENS + 1) % vocabulary
        return tokens

    def _verify_cached(self, tokens: np.ndarray) -> None:
        """PortError unless a token with the cache that grows, run by itself, has the
        logits that it has without.

        Some models take other positions for a padded row once there is a cache, or read
        its padding then: these take no padding. No program is compiled, so that code
        runs that asks for values.
        """
        present = np.ones((2, len(tokens)), bool)
        present[1, :_PADDING] = False
        rows = np.where(present, tokens, 0)
        column = len(tokens) - 1
        padding = ((0, 0), (0, _COLUMNS - len(tokens)))
        expected = self._logits_at(
            np.pad(rows, padding), np.pad(present, padding), column
        )
        with torch.no_grad(), use_weights_in_loop(self.model, self.arrays, LOOP):
            inputs = self._cached_inputs(rows[:, :-1], present[:, :-1])
            output = self.model(**inputs, return_dict=True)
            arguments = update_arguments(
                self.model, output, dict(inputs, use_cache=True)
            )
            del arguments["input_ids"]
            inputs = self.model.prepare_inputs_for_generation(
                compat.wrap(jnp.asarray(rows)), next_sequence_length=1, **arguments
            )
            output = self.model(**inputs, return_dict=True)
        logits = np.asarray(compat.as_jax(output.logits)[:, -1], np.float32)
        self.takes_padding = are_close(self, expected[1:], logits[1:])
        if not are_close(self, expected[:1], logits[:1]):
            raise NoLoop(
                f"{type(self.model).__name__} gives other logits with its cache than without, and the cache cannot be "
                "traced",
                where=type(self.model).__name__,
                fix="use transformers' own generate, after tpuport.to_cpu(model)",
            )

    def _cached_inputs(self, tokens: np.ndarray, mask: np.ndarray) -> dict[str, Any]:
        """Arguments of a call with an empty cache, as transformers' generate makes
        them.
        """
        positions = np.maximum(np.cumsum(mask, axis=1, dtype=np.int32) - 1, 0)
        arrays = {
            "attention_mask": jnp.asarray(mask),
            "position_ids": jnp.asarray(positions),
        }
        arguments = only(arrays, self._parameters)
        return self.model.prepare_inputs_for_generation(
            compat.wrap(jnp.asarray(tokens)),
            use_cache=True,
            is_first_iteration=True,
            **{self._cache_argument: DynamicCache(config=self.model.config)},
            **compat.as_torch(arguments),
        )

    def warn(self) -> None:
        """Tell the user what decoding without a cache costs."""
        logger.warning(
            "generate decodes %s without a cache: all tokens so far run again for each new one.",
            type(self.model).__name__,
        )

    def _logits_of_example(
        self, tokens: np.ndarray, padding: int, columns: int
    ) -> np.ndarray:
        """Logits [1, V] after the tokens, with padding in front of them and others
        behind, up to `columns`.
        """
        end = padding + len(tokens)
        row = np.concatenate(
            [np.zeros(padding, np.int32), tokens, np.full(columns - end, tokens[0])]
        )
        mask = (np.arange(columns) >= padding) & (np.arange(columns) < end)
        return self._logits_at(row[None], mask[None], end - 1)

    def _logits_at(
        self, tokens: np.ndarray, mask: np.ndarray, column: int
    ) -> np.ndarray:
        """Logits [B, V] of one column of tokens [B, T], as `forward_token` gives
        them.
        """
        with as_with_cache(self.model):
            return self.evaluate(self._logits, tokens, mask, np.int32(column))


def _padding_id(config: Any) -> int:
    """By which a model may count its tokens; 0 for one that has no padding."""
    candidates = (getattr(config, name, None) for name in ("pad_index", "pad_token_id"))
    return next((value for value in candidates if isinstance(value, int)), 0)


def _move_added(
    prepared: dict[str, Any], columns: int, added: int, column: jax.Array
) -> dict[str, Any]:
    """Traced. The model's inputs with the columns that it has added behind a column,
    and not behind the buffer.

    Args:
        columns: of the buffer, T.
        added: columns of the model's own, which come after those of the buffer.
    """
    numbers = jnp.arange(columns + added)
    earlier = jnp.where(
        numbers > column + added, numbers - added, columns + numbers - column - 1
    )
    order = compat.wrap(jnp.where(numbers <= column, numbers, earlier))

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for axis in range(1, value.ndim):
            if value.shape[axis] == columns + added:
                value = value.index_select(axis, order)
        return value

    return {name: move(value) for name, value in prepared.items()}
