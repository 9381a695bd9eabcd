"""Drafts of the next tokens, for a model that verifies several of them at once: from a
smaller model, or from the text.

Shapes: B batch, T columns of the token buffer, K drafted tokens, V vocabulary.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tpuport.generation.decoder import Decoder
from tpuport.generation.loop_state import Arrays, PaddedPrompt, State
from tpuport.generation.sampling import Choice


class Draft(NamedTuple):
    """Tokens that may come next.

    Attributes:
        tokens: int32 [B, K].
        counts: int32 [B], how many of them are meant.
        cache: of whoever drafts.
    """

    tokens: jax.Array
    counts: jax.Array
    cache: Any


@dataclasses.dataclass(frozen=True)
class ModelDrafter:
    """A smaller model, which chooses as the large one does: with the same processors
    and random keys.

    Attributes:
        decoder: of the model; it keeps all columns.
        count: K, the most tokens that are drafted.
        threshold: no token is drafted after one whose probability is below it.
    """

    decoder: Decoder
    count: int
    threshold: float

    @property
    def arrays(self) -> Arrays:
        """The model's weights."""
        return self.decoder.arrays

    def begin(self, arrays: Arrays, prompt: PaddedPrompt) -> Any:
        """Traced. The cache with the prompt [B, P]."""
        return self.decoder.forward_prompt(arrays, prompt)[1]

    def draft(
        self, arrays: Arrays, state: State, cache: Any, choice: Choice, limit: jax.Array
    ) -> Draft:
        """Traced. The tokens after those of `state`, up to `limit` columns."""
        first, processors = state.length, choice.settings.processors
        if processors is not None:
            # The host is asked about tokens that are chosen, not about drafts.
            processors = dataclasses.replace(processors, host=None)
            settings = choice.settings._replace(processors=processors)
            choice = choice._replace(settings=settings)

        def is_drafting(carry: tuple[State, jax.Array]) -> jax.Array:
            draft, is_sure = carry
            return is_sure & (draft.length < jnp.minimum(first + self.count, limit))

        def draft_token(carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
            draft, _ = carry
            # Two tokens: after a draft that was accepted as a whole, its last token is
            # not in the cache yet.
            column = draft.length - 2
            pair = jax.lax.dynamic_slice_in_dim(draft.tokens, column, 2, axis=1)
            logits, cache = self.decoder.forward_tokens(
                arrays, pair, draft.present, column, limit, draft.cache, only_last=True
            )
            draft = draft._replace(cache=cache)
            draft = self.decoder.append(draft, logits[:, 0], choice)
            chosen = jax.lax.dynamic_slice_in_dim(
                draft.tokens, draft.length - 1, 1, axis=1
            )
            # An id for padding may be outside of the vocabulary; such a row has ended.
            probability = jnp.take_along_axis(
                jax.nn.softmax(logits[:, 0]), jnp.maximum(chosen, 0), axis=1
            )
            return draft, jnp.all(
                (probability[:, 0] >= self.threshold) | draft.finished
            )

        begun = state._replace(cache=cache, outputs=None)
        draft, _ = jax.lax.while_loop(
            is_drafting, draft_token, (begun, jnp.asarray(True))
        )
        tokens = jax.lax.dynamic_slice_in_dim(draft.tokens, first, self.count, axis=1)
        counts = jnp.broadcast_to(draft.length - first, tokens.shape[:1])
        return Draft(tokens, counts, draft.cache)


@dataclasses.dataclass(frozen=True)
class TextDrafter:
    """What followed the last tokens where they occurred before in the row's own text
    (prompt lookup).

    Attributes:
        count: K, the most of what follows that is the draft.
        ngram_size: how many of the last tokens are looked for, and then fewer.
    """

    count: int
    ngram_size: int

    @property
    def arrays(self) -> Arrays:
        """None."""
        return {}

    def begin(self, arrays: Arrays, prompt: PaddedPrompt) -> Any:
        """Traced. Nothing."""
        return ()

    def draft(
        self, arrays: Arrays, state: State, cache: Any, choice: Choice, limit: jax.Array
    ) -> Draft:
        """Traced. The tokens after the first occurrence of the longest of the last
        tokens' sequences.
        """
        columns = jnp.arange(state.tokens.shape[1])
        is_text = state.present & (columns < state.length)
        starts = jnp.full(state.tokens.shape[:1], -1, jnp.int32)
        for size in range(1, self.ngram_size + 1):
            start = _first_continuation(state.tokens, is_text, state.length, size)
            starts = jnp.where(start >= 0, start, starts)
        indices = jnp.minimum(
            starts[:, None] + jnp.arange(self.count), state.length - 1
        )
        tokens = jnp.take_along_axis(state.tokens, jnp.maximum(indices, 0), axis=1)
        counts = jnp.where(
            starts >= 0, jnp.minimum(state.length - starts, self.count), 0
        )
        return Draft(tokens, counts, ())


def _first_continuation(
    tokens: jax.Array, is_text: jax.Array, length: jax.Array, size: int
) -> jax.Array:
    """Traced. The column [B] behind the first earlier occurrence of the last `size`
    tokens of [B, T], or -1.
    """
    total = tokens.shape[1]
    last = jax.lax.dynamic_slice_in_dim(
        tokens, jnp.maximum(length - size, 0), size, axis=1
    )
    matches = jnp.ones(tokens.shape, jnp.bool_)
    for offset in range(size):
        # Column c of a shifted array is column c + offset; what comes from the front is
        # no text.
        shifted = jnp.roll(tokens, -offset, axis=1)
        is_token = jnp.roll(is_text, -offset, axis=1) & (
            jnp.arange(total) + offset < total
        )
        matches = matches & (shifted == last[:, offset, None]) & is_token
    # Something has to follow, and the last tokens themselves end the text.
    matches = matches & (jnp.arange(total) + size < length) & (length > size)
    return jnp.where(
        matches.any(axis=1), jnp.argmax(matches, axis=1) + size, -1
    ).astype(jnp.int32)
