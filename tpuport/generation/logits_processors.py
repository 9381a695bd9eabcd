"""transformers' logits processors as functions of the loop's token buffer, which is
longer than what has been written.

An option that nobody asked for is not in `Processors`, so that a program without it
computes nothing for it. The values of the others are arguments of the program. Shapes:
B batch, V vocabulary, T token buffer, S encoder tokens, N sequences or ids with free
slots, L their length.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.base.mappings import without
from tpuport.generation import logits_filters, step_functions
from tpuport.generation.generation_options import Options
from tpuport.generation.logits_filters import mark_tokens
from tpuport.generation.processor_options import SequenceBiases
from tpuport.generation.prompts import Prompts, bucket_length
from tpuport.generation.step_functions import RegisteredFunctions
from tpuport.generation.whisper_processors import force_timestamps
from tpuport.internals import transformers_internals

logger = logging.getLogger("tpuport")

# No vocabulary has it: scatters drop what goes there. Negative ids would count from the
# end.
_NO_TOKEN = np.int32(2**31 - 1)
_LEAST_SLOTS = 8
_NEVER = -1
_OF_ENCODER = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")
# In transformers' order: before its repetition penalty, after it, after the minimum
# length, before top-k, after min-p, and at the end. Some names are stages of the host.
BIASES = ("sequence_bias", "encoder_repetition_penalty")
BANS = ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids")
FORCES = (
    step_functions.PREFIX, "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", step_functions.CUSTOM, "timestamps",
)  # fmt: skip
ENTROPY = ("top_h",)
CUTS = ("typical_p", "epsilon_cutoff", "eta_cutoff")
LAST = (step_functions.WATERMARK, "renormalize_logits")


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
    """Arguments of the program.

    Attributes:
        prompt_columns: of the buffer, with the bucket's padding.
        first_columns: [B], the first column that transformers has too: the user's own
            padding counts for most processors, and the bucket's never does.
        options: arguments of each option that is asked for, by its name.
        host: functions that the host has in each step.
        encoder: None if the prompt is what transformers takes for the encoder's tokens,
            as in decoder-only models.
        min_tokens: how many tokens each filter leaves at least; None is one.
        penalizes_padding: whether the user's own padding counts for the repetition
            penalty.
    """

    prompt_columns: Any
    first_columns: Any
    options: dict[str, Any]
    host: RegisteredFunctions | None = None
    encoder: EncoderTokens | None = None
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
    asked = options.processors
    ignored = [name for name in _OF_ENCODER if name in asked]
    if prompts.source_length == 0 and ignored:
        # transformers warns and goes on as well.
        logger.warning(
            "%s: ignored, this encoder reads no token ids.", ", ".join(_OF_ENCODER)
        )
        asked = without(asked, ignored)
    has_least_tokens = options.do_sample and options.least_tokens > 1
    # Whatever the penalty: another one needs no other program.
    penalizes_padding = (
        prompts.padding_is_context and transformers_internals.penalizes_padding()
    )
    if not (asked or has_least_tokens or penalizes_padding or host):
        return None
    call = _Call(options.max_new, prompts.length == 1, "forced_bos_token_id" in asked)
    return Processors(
        prompt_columns=np.int32(prompts.tokens.shape[1]),
        first_columns=prompts.first_columns,
        options={
            name: _PROCESSORS[name].pack(value, call) for name, value in asked.items()
        },
        host=host,
        encoder=_encoder_tokens(prompts),
        min_tokens=np.int32(options.least_tokens) if has_least_tokens else None,
        penalizes_padding=penalizes_padding,
    )


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


class _Call(NamedTuple):
    """What arguments depend on beside the values.

    Attributes:
        is_start_token: whether the prompt is one token, which transformers takes for a
            start token: the processors of the beginning differ.
    """

    max_new: int
    is_start_token: bool
    forces_first: bool


def _as_float(value: float, call: _Call) -> np.float32:
    return np.float32(value)


def _as_int(value: int, call: _Call) -> np.int32:
    return np.int32(min(value, _NO_TOKEN))


def _as_given(value: Any, call: _Call) -> Any:
    return value


def _as_flag(value: bool, call: _Call) -> tuple[()]:
    return ()


def _slots(count: int) -> int:
    """Powers of two, so that another list of about the same length needs no other
    program.
    """
    return max(_LEAST_SLOTS, 1 << (count - 1).bit_length())


def _pack_ids(ids: Iterable[int], call: _Call | None = None) -> np.ndarray:
    ids = list(ids)
    slots = np.full(_slots(len(ids)), _NO_TOKEN, np.int32)
    slots[: len(ids)] = ids
    return slots


def _first_token(token: int, call: _Call) -> TokensAtStep:
    return TokensAtStep(
        _pack_ids([token]), np.int32(0 if call.is_start_token else _NEVER)
    )


def _last_tokens(ids: tuple[int, ...], call: _Call) -> TokensAtStep:
    return TokensAtStep(_pack_ids(ids), np.int32(call.max_new - 1))


def _tokens_of_beginning(ids: tuple[int, ...], call: _Call) -> TokensAtStep:
    step = 1 if call.is_start_token and call.forces_first else 0
    return TokensAtStep(_pack_ids(ids), np.int32(step))


def _pack_sequences(biases: SequenceBiases, call: _Call) -> BiasedSequences:
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


def _decay_penalty(decay: tuple[int, float], call: _Call) -> DecayPenalty:
    start, factor = decay
    # Python's own powers, in 64 bits, as transformers takes them.
    with np.errstate(over="ignore"):
        growth = np.power(np.float64(factor), np.arange(bucket_length(call.max_new)))
    return DecayPenalty(np.int32(start), (growth - 1).astype(np.float32))


class Step:
    """Traced. One step's tokens, and what the processors know about them.

    Args:
        tokens: [B, T], of which the columns before
            `processors.prompt_columns + new_tokens` are written.
        ends: [V], True for the ids that end a sequence.
    """

    def __init__(
        self,
        processors: Processors,
        tokens: jax.Array,
        new_tokens: jax.Array,
        ends: jax.Array,
    ) -> None:
        self.processors = processors
        self.tokens = tokens
        self.new_tokens = new_tokens
        self.ends = ends
        self.length = processors.prompt_columns + new_tokens
        columns = jnp.arange(tokens.shape[1])
        self.first = processors.first_columns[:, None]
        self.visible = (columns >= self.first) & (columns < self.length)

    def process(self, names: Iterable[str], scores: jax.Array) -> jax.Array:
        """Traced. Scores [B, V] after those of some options, or stages of the host,
        that are asked for.
        """
        options, host = self.processors.options, self.processors.host
        for name in names:
            if name in options:
                process = _PROCESSORS[name].process
                scores = process(self, scores, options[name])
            elif name not in _PROCESSORS:
                scores = step_functions.process_on_host(
                    host, name, self.tokens, self.length, scores
                )
        return scores

    @property
    def encoder_tokens(self) -> EncoderTokens:
        """What transformers takes for the encoder's tokens."""
        if self.processors.encoder is not None:
            return self.processors.encoder
        is_prompt = jnp.arange(self.tokens.shape[1]) < self.processors.prompt_columns
        return EncoderTokens(self.tokens, self.visible & is_prompt)


# Each: (step, scores [B, V], arguments of the option) -> scores.


def _add_biases(step: Step, scores: jax.Array, sequences: BiasedSequences) -> jax.Array:
    """The sum of the biases of all sequences that each token would complete."""
    longest = sequences.tokens.shape[1]
    columns = step.length - (longest - 1) + jnp.arange(longest - 1)
    recent = jnp.take(step.tokens, jnp.maximum(columns, 0), axis=1)
    equal = (recent[:, None] == sequences.tokens[:, :-1]) & (columns >= step.first)[
        :, None
    ]
    is_prefix = jnp.arange(longest - 1) >= longest - sequences.lengths[:, None]
    matches = jnp.all(equal | ~is_prefix, axis=-1)
    biases = jnp.where(matches, sequences.biases, 0.0)
    zeros = jnp.zeros(scores.shape, jnp.float32)
    return scores + zeros.at[:, sequences.tokens[:, -1]].add(biases, mode="drop")


def _penalize_encoder(step: Step, scores: jax.Array, penalty: jax.Array) -> jax.Array:
    encoder = step.encoder_tokens
    # The reciprocal first, as transformers rounds it.
    return penalize(scores, encoder.tokens, encoder.present, 1.0 / penalty)


def penalize(
    scores: jax.Array, tokens: jax.Array, present: jax.Array, penalty: jax.Array
) -> jax.Array:
    """Traced. Positive scores of tokens already there are divided, negative ones
    multiplied (Keskar et al. 2019, CTRL).
    """
    seen = mark_tokens(tokens, present, scores.shape)
    return jnp.where(
        seen, jnp.where(scores < 0, scores * penalty, scores / penalty), scores
    )


def _ban_own(step: Step, scores: jax.Array, size: jax.Array) -> jax.Array:
    return _ban_ngrams(step, scores, size, EncoderTokens(step.tokens, step.visible))


def _ban_encoders(step: Step, scores: jax.Array, size: jax.Array) -> jax.Array:
    return _ban_ngrams(step, scores, size, step.encoder_tokens)


def _ban_ngrams(
    step: Step, scores: jax.Array, size: jax.Array, source: EncoderTokens
) -> jax.Array:
    """-inf for each token that would complete an n-gram of the source."""

    def extend(back: jax.Array, ends: jax.Array) -> jax.Array:
        """Where an n-gram ends whose last tokens but one are the last `back` ones."""
        earlier = jnp.roll(source.tokens, back, axis=1)
        is_token = jnp.roll(source.present, back, axis=1)
        # What `roll` brings around from the end is not an earlier token.
        is_token = is_token & (jnp.arange(is_token.shape[1]) >= back)
        column = step.length - back
        token = jnp.take(step.tokens, jnp.maximum(column, 0), axis=1)[:, None]
        return ends & is_token & (earlier == token) & (column >= step.first)

    # No n-gram is longer than its source.
    size = jnp.minimum(size, source.tokens.shape[1] + 1)
    ends = jax.lax.fori_loop(1, size, extend, source.present)
    return jnp.where(mark_tokens(source.tokens, ends, scores.shape), -jnp.inf, scores)


def _force(step: Step, scores: jax.Array, forced: TokensAtStep) -> jax.Array:
    only = jnp.where(_mark_ids(forced.ids, scores.shape[-1]), 0.0, -jnp.inf)
    return jnp.where(step.new_tokens == forced.step, only, scores)


def _remove_invalid(step: Step, scores: jax.Array, flag: tuple[()]) -> jax.Array:
    limits = jnp.finfo(scores.dtype)
    return jnp.nan_to_num(scores, nan=0.0, posinf=limits.max, neginf=limits.min)


def _favour_ends(step: Step, scores: jax.Array, decay: DecayPenalty) -> jax.Array:
    number = jnp.clip(step.new_tokens - decay.start, 0, decay.growth.shape[0] - 1)
    growth = jnp.where(
        jnp.isfinite(scores), jnp.abs(scores) * decay.growth[number], 0.0
    )
    is_favoured = step.ends & (step.new_tokens > decay.start)
    return jnp.where(is_favoured, scores + growth, scores)


def _suppress(step: Step, scores: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.where(_mark_ids(ids, scores.shape[-1]), -jnp.inf, scores)


def _suppress_at(step: Step, scores: jax.Array, tokens: TokensAtStep) -> jax.Array:
    suppressed = _mark_ids(tokens.ids, scores.shape[-1])
    return jnp.where(suppressed & (step.new_tokens == tokens.step), -jnp.inf, scores)


def _mark_ids(ids: jax.Array, vocabulary: int) -> jax.Array:
    """[V], True for the ids [N]."""
    return jnp.zeros(vocabulary, jnp.bool_).at[ids].set(True, mode="drop")


def _follow_timestamps(step: Step, scores: jax.Array, rules: Any) -> jax.Array:
    columns = step.processors.prompt_columns
    return force_timestamps(scores, step.tokens, columns, step.new_tokens, rules)


def _renormalize(step: Step, scores: jax.Array, flag: tuple[()]) -> jax.Array:
    return jax.nn.log_softmax(scores, axis=-1)


class _Processor(NamedTuple):
    """An option: how its value becomes arguments of the program, and what it does
    there.
    """

    pack: Callable[[Any, _Call], Any]
    process: Callable[[Step, jax.Array, Any], jax.Array]


_PROCESSORS = {
    "sequence_bias": _Processor(_pack_sequences, _add_biases),
    "encoder_repetition_penalty": _Processor(_as_float, _penalize_encoder),
    "no_repeat_ngram_size": _Processor(_as_int, _ban_own),
    "encoder_no_repeat_ngram_size": _Processor(_as_int, _ban_encoders),
    "bad_words_ids": _Processor(_pack_sequences, _add_biases),
    "forced_bos_token_id": _Processor(_first_token, _force),
    "forced_eos_token_id": _Processor(_last_tokens, _force),
    "remove_invalid_values": _Processor(_as_flag, _remove_invalid),
    "exponential_decay_length_penalty": _Processor(_decay_penalty, _favour_ends),
    "suppress_tokens": _Processor(_pack_ids, _suppress),
    "begin_suppress_tokens": _Processor(_tokens_of_beginning, _suppress_at),
    "timestamps": _Processor(_as_given, _follow_timestamps),
    "top_h": _Processor(_as_float, logits_filters.filter_top_h),
    "typical_p": _Processor(_as_float, logits_filters.filter_typical),
    "epsilon_cutoff": _Processor(_as_float, logits_filters.filter_epsilon),
    "eta_cutoff": _Processor(_as_float, logits_filters.filter_eta),
    "renormalize_logits": _Processor(_as_flag, _renormalize),
}
