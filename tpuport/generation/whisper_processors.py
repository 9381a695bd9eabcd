"""What Whisper's `generate` gives transformers' `generate` as logits processors, as
options of the compiled loop.

Shapes: B batch, V vocabulary, T token buffer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from transformers.generation import logits_process

from tpuport.errors import PortError
from tpuport.internals.transformers_internals import decides_by_probability

_TRANSLATED = (
    logits_process.SuppressTokensLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.WhisperTimeStampLogitsProcessor,
)


class TimestampRules(NamedTuple):
    """The rules of `WhisperTimeStampLogitsProcessor`; token ids, which are arguments of
    the program.

    Attributes:
        no_timestamps: the id before the first timestamp; eos: the id that ends a
            sequence.
        last_initial: the last timestamp that may come first.
        compares_probability: whether timestamps win if they are more probable together
            than any other token.
    """

    no_timestamps: Any
    eos: Any
    last_initial: Any
    compares_probability: Any


class WhisperProcessors(NamedTuple):
    """A list of processors: those that run on the host, the rules of timestamps, and
    options of GenerationConfig.
    """

    on_host: list[Any]
    timestamps: TimestampRules | None
    options: dict[str, list[int]]


def detect_silence(processors: Sequence[Any], prompt: Any) -> None:
    """Let Whisper's detector of silence look at the decoder's prompt, for which it runs
    the model.

    In the loop it could not: programs do not begin inside of another one.
    """
    for processor in processors:
        if _is_detector(processor):
            # The scores are for prompts of a single token.
            processor(prompt, None)


def read_processors(processors: Sequence[Any]) -> WhisperProcessors:
    """What Whisper's `generate` gives to transformers' `generate`.

    Those of the beginning are taken to begin after the decoder's prompt, as Whisper's
    `generate` sets them.
    """
    in_loop = [processor for processor in processors if not _is_detector(processor)]
    options: dict[str, list[int]] = {"suppress_tokens": [], "begin_suppress_tokens": []}
    if not all(isinstance(processor, _TRANSLATED) for processor in in_loop):
        # Another processor may depend on what those before it have done: all run on the
        # host, in their order.
        return WhisperProcessors(in_loop, None, options)
    timestamps = None
    for processor in in_loop:
        match processor:
            case logits_process.SuppressTokensLogitsProcessor():
                options["suppress_tokens"] = processor.suppress_tokens.tolist()
            case logits_process.SuppressTokensAtBeginLogitsProcessor():
                options["begin_suppress_tokens"] = (
                    processor.begin_suppress_tokens.tolist()
                )
            case _:
                timestamps = _read_rules(processor)
    return WhisperProcessors([], timestamps, options)


def _is_detector(processor: Any) -> bool:
    is_detector = isinstance(processor, logits_process.WhisperNoSpeechDetection)
    return is_detector and processor.start_of_trans_offset > 1


def _read_rules(processor: Any) -> TimestampRules:
    if not isinstance(processor.eos_token_id, int):
        raise PortError(
            "timestamps need one id that ends a sequence",
            where=f"eos_token_id={processor.eos_token_id!r:.60}",
            fix="give generation_config.eos_token_id one id",
        )
    first = processor.timestamp_begin
    initial = processor.max_initial_timestamp_index
    last_initial = np.iinfo(np.int32).max if initial is None else first + initial
    return TimestampRules(
        no_timestamps=np.int32(processor.no_timestamps_token_id),
        eos=np.int32(processor.eos_token_id),
        last_initial=np.int32(last_initial),
        compares_probability=np.bool_(decides_by_probability(processor)),
    )


def force_timestamps(
    scores: jax.Array,
    tokens: jax.Array,
    prompt_columns: jax.Array,
    new_tokens: jax.Array,
    rules: TimestampRules,
) -> jax.Array:
    """Traced. Scores [B, V] after the rules: timestamps come in pairs, never decrease,
    and begin the text.

    Args:
        tokens: [B, T], of which the columns before `prompt_columns + new_tokens` are
            written.
    """
    first = rules.no_timestamps + 1
    ids = jnp.arange(scores.shape[-1], dtype=jnp.int32)
    is_timestamp_id = ids >= first
    columns = jnp.arange(tokens.shape[1])
    length = prompt_columns + new_tokens
    generated = (columns >= prompt_columns) & (columns < length)
    timestamps = generated & (tokens >= first)
    last, penultimate = (
        jnp.take(tokens, jnp.maximum(length - back, 0), axis=1) >= first
        for back in (1, 2)
    )
    last_was_timestamp = (new_tokens >= 1) & last
    # The first token counts as the second of a pair.
    penultimate_was_timestamp = (new_tokens < 2) | penultimate
    ends_pair = (last_was_timestamp & penultimate_was_timestamp)[:, None]
    begins_pair = (last_was_timestamp & ~penultimate_was_timestamp)[:, None]
    newest = jnp.max(jnp.where(timestamps, columns, -1), axis=1)
    newest_id = jnp.take_along_axis(tokens, jnp.maximum(newest, 0)[:, None], axis=1)
    least = jnp.where(
        (newest >= 0)[:, None], jnp.where(begins_pair, newest_id, newest_id + 1), first
    )
    is_first = new_tokens == 0
    removed = (
        (ids == rules.no_timestamps)
        | (ends_pair & is_timestamp_id)
        | (begins_pair & (ids < rules.eos))
        | (is_timestamp_id & (ids < least))
        | (is_first & (~is_timestamp_id | (ids > rules.last_initial)))
    )
    scores = jnp.where(removed, -jnp.inf, scores)
    log_probabilities = jax.nn.log_softmax(scores, axis=-1)
    together = jax.nn.logsumexp(
        jnp.where(is_timestamp_id, log_probabilities, -jnp.inf), axis=-1
    )
    best_text = jnp.max(
        jnp.where(is_timestamp_id, -jnp.inf, log_probabilities), axis=-1
    )
    wins = rules.compares_probability & (together > best_text)
    return jnp.where(wins[:, None] & ~is_timestamp_id, -jnp.inf, scores)
