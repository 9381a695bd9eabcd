"""The options of transformers' logits processors, checked by the processors' own
classes.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from transformers import GenerationConfig
from transformers.generation import logits_process

from tpuport.errors import PortError
from tpuport.generation.option_values import (
    field_reader,
    read_bool,
    read_float,
    read_ids,
    read_int,
)
from tpuport.generation.whisper_processors import TimestampRules

# What the classes raise for values that they do not take.
_VALUE_ERRORS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)

# A bias for the last token of each sequence, where the tokens before it have just been
# generated.
SequenceBiases = dict[tuple[int, ...], float]


@dataclasses.dataclass(frozen=True)
class ProcessorOptions:
    """Options of one call. None, an empty tuple and False ask for nothing, as do those
    of sampling when it is off.

    Attributes:
        exponential_decay_length_penalty: how many new tokens come before it, and its
            factor.
        bad_words: as biases of -inf, without the words that are an end-of-sequence id.
        timestamps: no field of GenerationConfig, but of Whisper's own `generate`.
    """

    sequence_bias: SequenceBiases | None = None
    encoder_repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    bad_words: SequenceBiases | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    remove_invalid_values: bool = False
    exponential_decay_length_penalty: tuple[int, float] | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    timestamps: TimestampRules | None = None
    top_h: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    renormalize_logits: bool = False


NO_PROCESSORS = ProcessorOptions()
PROCESSOR_FIELDS = frozenset(
    "sequence_bias encoder_repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
    "forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens top_h typical_p epsilon_cutoff eta_cutoff renormalize_logits".split()
)


def read_processor_options(
    config: GenerationConfig, eos: tuple[int, ...]
) -> ProcessorOptions:
    """The options that transformers' `generate` would make processors of.

    Raises:
        PortError: a value that the processor's class does not take.
    """
    read = field_reader(config)
    options = ProcessorOptions(
        sequence_bias=read("sequence_bias", _read_sequence_bias),
        encoder_repetition_penalty=read("encoder_repetition_penalty", _read_penalty),
        no_repeat_ngram_size=read("no_repeat_ngram_size", _read_size),
        encoder_no_repeat_ngram_size=read("encoder_no_repeat_ngram_size", _read_size),
        bad_words=read("bad_words_ids", _read_bad_words, eos),
        forced_bos_token_id=read("forced_bos_token_id", _read_token),
        forced_eos_token_id=read("forced_eos_token_id", _read_tokens),
        remove_invalid_values=read("remove_invalid_values", read_bool),
        exponential_decay_length_penalty=read(
            "exponential_decay_length_penalty", _read_decay, eos
        ),
        suppress_tokens=read("suppress_tokens", read_ids),
        begin_suppress_tokens=read("begin_suppress_tokens", read_ids),
        renormalize_logits=read("renormalize_logits", read_bool),
    )
    _check_forced(options)
    if config.do_sample is not True:
        return options
    return dataclasses.replace(
        options,
        top_h=read("top_h", _read_filter, logits_process.TopHLogitsWarper),
        typical_p=read(
            "typical_p", _read_filter, logits_process.TypicalLogitsWarper, 1.0
        ),
        epsilon_cutoff=read("epsilon_cutoff", _read_cutoff),
        eta_cutoff=read("eta_cutoff", _read_cutoff),
    )


def _check_forced(options: ProcessorOptions) -> None:
    """PortError if every token that is forced at one end is suppressed, as transformers
    raises it.
    """
    bos = options.forced_bos_token_id
    tokens = {
        "forced_bos_token_id": set() if bos is None else {bos},
        "forced_eos_token_id": set(options.forced_eos_token_id),
    }
    for name, forced in tokens.items():
        if forced and forced <= set(options.suppress_tokens):
            raise PortError(
                "every token that is forced is suppressed too, which leaves none",
                where=f"{name}={sorted(forced)}, suppress_tokens",
                fix=f"leave {name} out, or one of its tokens out of suppress_tokens",
            )


def check_token_ids(options: ProcessorOptions, vocabulary: int) -> None:
    """PortError for biased or forced tokens that the vocabulary does not have, as
    transformers raises it.
    """
    bos = options.forced_bos_token_id
    tokens = {
        "sequence_bias": itertools.chain.from_iterable(options.sequence_bias or ()),
        "bad_words_ids": itertools.chain.from_iterable(options.bad_words or ()),
        "forced_bos_token_id": [] if bos is None else [bos],
        "forced_eos_token_id": options.forced_eos_token_id,
    }
    for name, ids in tokens.items():
        outside = [token for token in ids if token >= vocabulary]
        if outside:
            raise PortError(
                f"the vocabulary has {vocabulary} tokens, and these are not among them: {outside}",
                where=name,
            )


def _construct(name: str, value: Any, make: Callable[[], Any]) -> Any:
    """A processor of transformers; PortError if its class does not take the value."""
    try:
        return make()
    except _VALUE_ERRORS as error:
        raise PortError(
            f"transformers does not take this option: {error}",
            where=f"{name}={value!r:.60}",
        ) from None


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict | list | tuple | set) and not value)


def _read_sequence_bias(name: str, value: Any) -> SequenceBiases | None:
    if _is_empty(value):
        return None
    make = logits_process.SequenceBiasLogitsProcessor
    return dict(_construct(name, value, lambda: make(value)).sequence_bias)


def _read_bad_words(
    name: str, value: Any, eos: tuple[int, ...]
) -> SequenceBiases | None:
    if _is_empty(value):
        return None

    def make() -> SequenceBiases:
        # A word that ends sequences is let pass; the class refuses to be left without
        # words.
        words = [word for word in value if word not in [[token] for token in eos]]
        checked = logits_process.NoBadWordsLogitsProcessor(value)
        return {tuple(word): checked.sequence_bias[tuple(word)] for word in words}

    return _construct(name, value, make) or None


def _read_penalty(name: str, value: Any) -> float | None:
    penalty = read_float(name, value, 1.0)
    if penalty == 1.0:
        return None
    if penalty <= 0.0:
        raise PortError("a penalty is above 0", where=f"{name}={penalty}")
    return penalty


def _read_size(name: str, value: Any) -> int | None:
    size = read_int(name, value)
    # transformers ignores negative ones too.
    return size if size > 0 else None


def _read_token(name: str, value: Any) -> int | None:
    token = read_int(name, value, None)
    if token is not None and token < 0:
        raise PortError("token ids are counted from 0", where=f"{name}={token}")
    return token


def _read_tokens(name: str, value: Any) -> tuple[int, ...]:
    tokens = read_ids(name, value)
    # `read_ids` drops what no token can be, which here would force none.
    if value is not None and not tokens:
        raise PortError("token ids are counted from 0", where=f"{name}={value!r:.60}")
    return tokens


def _read_decay(
    name: str, value: Any, eos: tuple[int, ...]
) -> tuple[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise PortError(
            "a pair is needed: the start, and the factor", where=f"{name}={value!r:.60}"
        )
    if not eos:
        raise PortError(
            "there is no end of sequence to favour", where=name, fix="give eos_token_id"
        )
    return read_int(name, value[0]), read_float(name, value[1])


def _read_filter(
    name: str,
    value: Any,
    processor: Callable[[float], Any],
    off_from: float | None = None,
) -> float | None:
    number = read_float(name, value, None)
    if number is None or (off_from is not None and number >= off_from):
        return None
    _construct(name, value, lambda: processor(number))
    return number


def _read_cutoff(name: str, value: Any) -> float | None:
    cutoff = read_float(name, value)
    # transformers ignores those outside as well.
    return cutoff if 0.0 < cutoff < 1.0 else None
