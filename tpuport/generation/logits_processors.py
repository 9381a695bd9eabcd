"""transformers' logits processors as functions of the loop's token buffer, which is
longer than what has been written.

An option that nobody asked for is None in `Processors`, so that a program without it
computes nothing for it. The values of the others are arguments of the program. Shapes:
B batch, V vocabulary, T token buffer, S encoder tokens, N sequences or ids with free
slots, L their length.
"""

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.generation import step_functions
from tpuport.generation.generation_options import Options
from tpuport.generation.processor_options import (
    NO_PROCESSORS,
    ProcessorOptions,
    SequenceBiases,
)
from tpuport.generation.prompts import Prompts, bucket_length
from tpuport.generation.step_functions import RegisteredFunctions
from tpuport.generation.whisper_processors import TimestampRules
from tpuport.internals import transformers_internals

logger = logging.getLogger("tpuport")

# No vocabulary has it: scatters drop what goes there. Negative ids would count from the
# end.
_NO_TOKEN = np.int32(2**31 - 1)
_LEAST_SLOTS = 8
_NEVER = -1


class BiasedSequences(NamedTuple):
    """Sequences whose last token gets a bias where the tokens before it have just been
    generated.

    Attributes:
        tokens: [N, L], on the right of their rows; lengths: [N], 0 for a free slot;
            biases: [N].
    """

    tokens: Any
    lengths: Any
    biases: Any


class EncoderTokens(NamedTuple):
    """The encoder's tokens [B, S] as transformers has them, padding included; `present`
    is False elsewhere.
    """

    tokens: Any
    present: Any


class TokensAtStep(NamedTuple):
    """Token ids [N], and after how many new tokens they matter."""

    ids: Any
    step: Any


class DecayPenalty(NamedTuple):
    """`growth` [steps], the factor to the power of 0, 1, ... less 1, from `start` new
    tokens on.
    """

    start: Any
    growth: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Processors:
    """Arguments of the program; None is an option that is not in it.

    Attributes:
        prompt_columns: of the buffer, with the bucket's padding.
        first_columns: [B], the first column that transformers has too: the user's own
            padding counts for most processors, and the bucket's never does.
        host: functions that the host has in each step.
        encoder: None if the prompt is what transformers takes for the encoder's tokens,
            as in decoder-only models.
        min_tokens: how many tokens each filter leaves at least; None is one.
        penalizes_padding: whether the user's own padding counts for the repetition
            penalty.
    """

    prompt_columns: Any
    first_columns: Any
    host: RegisteredFunctions | None = None
    encoder: EncoderTokens | None = None
    sequence_bias: BiasedSequences | None = None
    encoder_repetition_penalty: Any = None
    no_repeat_ngram_size: Any = None
    encoder_no_repeat_ngram_size: Any = None
    bad_words: BiasedSequences | None = None
    forced_bos: TokensAtStep | None = None
    forced_eos: TokensAtStep | None = None
    remove_invalid_values: bool = dataclasses.field(
        default=False, metadata={"static": True}
    )
    decay: DecayPenalty | None = None
    suppress_tokens: Any = None
    begin_suppress_tokens: TokensAtStep | None = None
    timestamps: TimestampRules | None = None
    top_h: Any = None
    typical_p: Any = None
    epsilon_cutoff: Any = None
    eta_cutoff: Any = None
    renormalize_logits: bool = dataclasses.field(
        default=False, metadata={"static": True}
    )
    min_tokens: Any = None
    penalizes_padding: bool = dataclasses.field(
        default=False, metadata={"static": True}
    )


def make_processors(
    options: Options, prompts: Prompts, host: RegisteredFunctions | None = None
) -> Processors | None:
    """The arrays for the options of a call and what the host does in it, None if there
    is nothing to do.
    """
    processors, max_new = options.processors, options.max_new
    if prompts.source_length == 0:
        processors = _without_encoder_options(processors)
    has_least_tokens = options.do_sample and options.least_tokens > 1
    # Whatever the penalty: another one needs no other program.
    penalizes_padding = (
        prompts.padding_is_context and transformers_internals.penalizes_padding()
    )
    if processors == NO_PROCESSORS and not (
        has_least_tokens or penalizes_padding or host
    ):
        return None
    # A prompt of one token is a start token to transformers, and the processors of the
    # beginning differ.
    is_start_token = prompts.length == 1
    bos = processors.forced_bos_token_id
    begin_step = 1 if is_start_token and bos is not None else 0
    return Processors(
        prompt_columns=np.int32(prompts.tokens.shape[1]),
        first_columns=prompts.first_columns,
        host=host,
        encoder=_encoder_tokens(prompts),
        sequence_bias=_pack_sequences(processors.sequence_bias),
        encoder_repetition_penalty=_as_float(processors.encoder_repetition_penalty),
        no_repeat_ngram_size=_as_int(processors.no_repeat_ngram_size),
        encoder_no_repeat_ngram_size=_as_int(processors.encoder_no_repeat_ngram_size),
        bad_words=_pack_sequences(processors.bad_words),
        forced_bos=_tokens_at(
            () if bos is None else (bos,), 0 if is_start_token else _NEVER
        ),
        forced_eos=_tokens_at(processors.forced_eos_token_id, max_new - 1),
        remove_invalid_values=processors.remove_invalid_values,
        decay=_decay_penalty(processors.exponential_decay_length_penalty, max_new),
        suppress_tokens=_pack_ids(processors.suppress_tokens)
        if processors.suppress_tokens
        else None,
        begin_suppress_tokens=_tokens_at(processors.begin_suppress_tokens, begin_step),
        timestamps=processors.timestamps,
        top_h=_as_float(processors.top_h),
        typical_p=_as_float(processors.typical_p),
        epsilon_cutoff=_as_float(processors.epsilon_cutoff),
        eta_cutoff=_as_float(processors.eta_cutoff),
        renormalize_logits=processors.renormalize_logits,
        min_tokens=np.int32(options.least_tokens) if has_least_tokens else None,
        penalizes_padding=penalizes_padding,
    )


def _without_encoder_options(options: ProcessorOptions) -> ProcessorOptions:
    """For an encoder that reads no token ids; transformers warns and goes on as
    well.
    """
    encoder_options = {
        "encoder_repetition_penalty": None,
        "encoder_no_repeat_ngram_size": None,
    }
    if any(getattr(options, name) is not None for name in encoder_options):
        logger.warning(
            "%s: ignored, this encoder reads no token ids.", ", ".join(encoder_options)
        )
    return dataclasses.replace(options, **encoder_options)


def _encoder_tokens(prompts: Prompts) -> EncoderTokens | None:
    if not prompts.source_length:
        return None
    ids = np.asarray(prompts.inputs["input_ids"], np.int32)
    present = np.broadcast_to(
        np.arange(ids.shape[1]) < prompts.source_length, ids.shape
    )
    if not prompts.padding_is_context and "attention_mask" in prompts.inputs:
        present = present & prompts.inputs["attention_mask"].astype(bool)
    return EncoderTokens(ids, present)


def _as_float(value: float | None) -> np.float32 | None:
    return None if value is None else np.float32(value)


def _as_int(value: int | None) -> np.int32 | None:
    return None if value is None else np.int32(min(value, _NO_TOKEN))


def _slots(count: int) -> int:
    """Powers of two, so that another list of about the same length needs no other
    program.
    """
    return max(_LEAST_SLOTS, 1 << (count - 1).bit_length())


def _pack_ids(ids: Iterable[int]) -> np.ndarray:
    ids = list(ids)
    slots = np.full(_slots(len(ids)), _NO_TOKEN, np.int32)
    slots[: len(ids)] = ids
    return slots


def _tokens_at(ids: tuple[int, ...], step: int) -> TokensAtStep | None:
    return TokensAtStep(_pack_ids(ids), np.int32(step)) if ids else None


def _pack_sequences(biases: SequenceBiases | None) -> BiasedSequences | None:
    if not biases:
        return None
    count, length = _slots(len(biases)), _slots(max(map(len, biases)))
    packed = BiasedSequences(
        np.full((count, length), _NO_TOKEN, np.int32),
        np.zeros(count, np.int32),
        np.zeros(count, np.float32),
    )
    for slot, (sequence, bias) in enumerate(biases.items()):
        packed.tokens[slot, length - len(sequence) :] = sequence
        packed.lengths[slot], packed.biases[slot] = len(sequence), bias
    return packed


def _decay_penalty(
    decay: tuple[int, float] | None, max_new: int
) -> DecayPenalty | None:
    if decay is None:
        return None
    start, factor = decay
    # Python's own powers, in 64 bits, as transformers takes them.
    with np.errstate(over="ignore"):
        growth = np.power(np.float64(factor), np.arange(bucket_length(max_new))) - 1
    return DecayPenalty(np.int32(start), growth.astype(np.float32))


class Step:
    """Traced. One step's tokens, and what the processors know about them.

    Args:
        tokens: [B, T], of which the columns before
            `processors.prompt_columns + new_tokens` are written.
    """

    def __init__(
        self, processors: Processors, tokens: jax.Array, new_tokens: jax.Array
    ) -> None:
        self.processors = processors
        self.tokens = tokens
        self.new_tokens = new_tokens
        self.length = processors.prompt_columns + new_tokens
        columns = jnp.arange(tokens.shape[1])
        self.first = processors.first_columns[:, None]
        self.visible = (columns >= self.first) & (columns < self.length)

    def bias_sequences(self, scores: jax.Array) -> jax.Array:
        """Traced. The first processors, before the repetition penalty."""
        processors = self.processors
        if processors.sequence_bias is not None:
            scores = scores + self._sequence_biases(
                processors.sequence_bias, scores.shape[-1]
            )
        if processors.encoder_repetition_penalty is not None:
            encoder = self._encoder_tokens()
            seen = mark_tokens(encoder.tokens, encoder.present, scores.shape)
            # The reciprocal first, as transformers rounds it.
            penalty = 1.0 / processors.encoder_repetition_penalty
            scores = jnp.where(
                seen, jnp.where(scores < 0, scores * penalty, scores / penalty), scores
            )
        return scores

    def ban_sequences(self, scores: jax.Array) -> jax.Array:
        """Traced. After the repetition penalty, before the minimum length."""
        processors = self.processors
        if processors.no_repeat_ngram_size is not None:
            own = EncoderTokens(self.tokens, self.visible)
            scores = self._ban_ngrams(scores, own, processors.no_repeat_ngram_size)
        if processors.encoder_no_repeat_ngram_size is not None:
            encoder = self._encoder_tokens()
            scores = self._ban_ngrams(
                scores, encoder, processors.encoder_no_repeat_ngram_size
            )
        if processors.bad_words is not None:
            scores = scores + self._sequence_biases(
                processors.bad_words, scores.shape[-1]
            )
        return scores

    def force_tokens(self, scores: jax.Array, ends: jax.Array) -> jax.Array:
        """Traced. After the minimum length, before what only samples; `ends` [V] marks
        the ids that end a sequence.
        """
        processors = self.processors
        scores = self.process_on_host(step_functions.PREFIX, scores)
        for forced in (processors.forced_bos, processors.forced_eos):
            if forced is not None:
                only = jnp.where(_mark_ids(forced.ids, scores.shape[-1]), 0.0, -jnp.inf)
                scores = jnp.where(self.new_tokens == forced.step, only, scores)
        if processors.remove_invalid_values:
            scores = _remove_invalid(scores)
        if processors.decay is not None:
            scores = self._favour(ends, scores, processors.decay)
        if processors.suppress_tokens is not None:
            suppressed = _mark_ids(processors.suppress_tokens, scores.shape[-1])
            scores = jnp.where(suppressed, -jnp.inf, scores)
        begin = processors.begin_suppress_tokens
        if begin is not None:
            suppressed = _mark_ids(begin.ids, scores.shape[-1]) & (
                self.new_tokens == begin.step
            )
            scores = jnp.where(suppressed, -jnp.inf, scores)
        return self.process_on_host(step_functions.CUSTOM, scores)

    def finish(self, scores: jax.Array) -> jax.Array:
        """Traced. The last processors."""
        scores = self.process_on_host(step_functions.WATERMARK, scores)
        if self.processors.renormalize_logits:
            scores = jax.nn.log_softmax(scores, axis=-1)
        return scores

    def process_on_host(self, stage: str, scores: jax.Array) -> jax.Array:
        """Traced. Scores after what the host does at this stage, if it does
        anything.
        """
        host = self.processors.host
        return step_functions.process_on_host(
            host, stage, self.tokens, self.length, scores
        )

    def _encoder_tokens(self) -> EncoderTokens:
        if self.processors.encoder is not None:
            return self.processors.encoder
        is_prompt = jnp.arange(self.tokens.shape[1]) < self.processors.prompt_columns
        return EncoderTokens(self.tokens, self.visible & is_prompt)

    def _sequence_biases(
        self, sequences: BiasedSequences, vocabulary: int
    ) -> jax.Array:
        """Traced. [B, V], the sum of the biases of all sequences that each token would
        complete.
        """
        longest = sequences.tokens.shape[1]
        columns = self.length - (longest - 1) + jnp.arange(longest - 1)
        recent = jnp.take(self.tokens, jnp.maximum(columns, 0), axis=1)
        equal = (recent[:, None] == sequences.tokens[:, :-1]) & (columns >= self.first)[
            :, None
        ]
        is_prefix = jnp.arange(longest - 1) >= longest - sequences.lengths[:, None]
        matches = jnp.all(equal | ~is_prefix, axis=-1)
        biases = jnp.where(matches, sequences.biases, 0.0)
        zeros = jnp.zeros((self.tokens.shape[0], vocabulary), jnp.float32)
        return zeros.at[:, sequences.tokens[:, -1]].add(biases, mode="drop")

    def _ban_ngrams(
        self, scores: jax.Array, source: EncoderTokens, size: jax.Array
    ) -> jax.Array:
        """Traced. -inf for each token that would complete an n-gram of the source
        (which `no_repeat` has of itself).
        """

        def extend(back: jax.Array, ends: jax.Array) -> jax.Array:
            """Where an n-gram ends whose last tokens but one are the last `back`
            ones.
            """
            earlier = jnp.roll(source.tokens, back, axis=1)
            is_token = jnp.roll(source.present, back, axis=1)
            # What `roll` brings around from the end is not an earlier token.
            is_token = is_token & (jnp.arange(is_token.shape[1]) >= back)
            column = self.length - back
            token = jnp.take(self.tokens, jnp.maximum(column, 0), axis=1)[:, None]
            return ends & is_token & (earlier == token) & (column >= self.first)

        # No n-gram is longer than its source.
        size = jnp.minimum(size, source.tokens.shape[1] + 1)
        ends = jax.lax.fori_loop(1, size, extend, source.present)
        return jnp.where(
            mark_tokens(source.tokens, ends, scores.shape), -jnp.inf, scores
        )

    def _favour(
        self, ends: jax.Array, scores: jax.Array, decay: DecayPenalty
    ) -> jax.Array:
        step = jnp.clip(self.new_tokens - decay.start, 0, decay.growth.shape[0] - 1)
        growth = jnp.where(
            jnp.isfinite(scores), jnp.abs(scores) * decay.growth[step], 0.0
        )
        return jnp.where(
            ends & (self.new_tokens > decay.start), scores + growth, scores
        )


def mark_tokens(
    tokens: jax.Array, marked: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
    """Traced. [B, V], True for the tokens [B, S] of each row that are marked there."""
    rows = jnp.arange(shape[0])[:, None]
    return jnp.zeros(shape, jnp.bool_).at[rows, tokens].max(marked, mode="drop")


def _mark_ids(ids: jax.Array, vocabulary: int) -> jax.Array:
    """Traced. [V], True for the ids [N]."""
    return jnp.zeros(vocabulary, jnp.bool_).at[ids].set(True, mode="drop")


def _remove_invalid(scores: jax.Array) -> jax.Array:
    limits = jnp.finfo(scores.dtype)
    return jnp.nan_to_num(scores, nan=0.0, posinf=limits.max, neginf=limits.min)
