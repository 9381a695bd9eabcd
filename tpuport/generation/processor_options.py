"""The options of transformers' logits processors, checked by the processors' own
classes.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from transformers import GenerationConfig
from transformers.generation import logits_process

from tpuport.errors import PortError
from tpuport.generation.option_values import (
    read_bool,
    read_float,
    read_ids,
    read_int,
)

# What the classes raise for values that they do not take.
_VALUE_ERRORS = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)

# A bias for the last token of each sequence, where the tokens before it have just been
# generated.
SequenceBiases = dict[tuple[int, ...], float]
# What is asked for, by the names of the fields. `timestamps` is no field, but the rules
# of Whisper's own `generate`.
ProcessorOptions = Mapping[str, Any]


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


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "sequence_bias": _read_sequence_bias,
    "encoder_repetition_penalty": _read_penalty,
    "no_repeat_ngram_size": _read_size,
    "encoder_no_repeat_ngram_size": _read_size,
    "forced_bos_token_id": _read_token,
    "forced_eos_token_id": _read_tokens,
    "remove_invalid_values": read_bool,
    "suppress_tokens": read_ids,
    "begin_suppress_tokens": read_ids,
    "renormalize_logits": read_bool,
}
# Those that are told which ids end a sequence.
_READERS_WITH_ENDS: dict[str, Callable[..., Any]] = {
    "bad_words_ids": _read_bad_words,
    "exponential_decay_length_penalty": _read_decay,
}
_READERS_OF_SAMPLING: dict[str, Callable[[str, Any], Any]] = {
    "top_h": functools.partial(_read_filter, processor=logits_process.TopHLogitsWarper),
    "typical_p": functools.partial(
        _read_filter, processor=logits_process.TypicalLogitsWarper, off_from=1.0
    ),
    "epsilon_cutoff": _read_cutoff,
    "eta_cutoff": _read_cutoff,
}
PROCESSOR_FIELDS = frozenset(_READERS | _READERS_WITH_ENDS | _READERS_OF_SAMPLING)


def read_processor_options(
    config: GenerationConfig, eos: tuple[int, ...]
) -> ProcessorOptions:
    """The options that transformers' `generate` would make processors of; of sampling,
    only if it is on.

    Raises:
        PortError: a value that the processor's class does not take.
    """
    readers = _READERS | {
        name: functools.partial(reader, eos=eos)
        for name, reader in _READERS_WITH_ENDS.items()
    }
    if config.do_sample is True:
        readers |= _READERS_OF_SAMPLING
    values = {
        name: reader(name, getattr(config, name)) for name, reader in readers.items()
    }
    # A token may be 0, which is equal to False.
    options = {
        name: value
        for name, value in values.items()
        if not (value is None or value is False or value == ())
    }
    _check_forced(options)
    return options


def _check_forced(options: ProcessorOptions) -> None:
    """PortError if every token that is forced at one end is suppressed, as transformers
    raises it.
    """
    for name, forced in _forced_tokens(options).items():
        if forced and set(forced) <= set(options.get("suppress_tokens", ())):
            raise PortError(
                "every token that is forced is suppressed too, which leaves none",
                where=f"{name}={sorted(forced)}, suppress_tokens",
                fix=f"leave {name} out, or one of its tokens out of suppress_tokens",
            )


def _forced_tokens(options: ProcessorOptions) -> dict[str, tuple[int, ...]]:
    """The tokens that are forced at each end, by the name of the option."""
    bos = options.get("forced_bos_token_id")
    return {
        "forced_bos_token_id": () if bos is None else (bos,),
        "forced_eos_token_id": options.get("forced_eos_token_id", ()),
    }


def check_token_ids(options: ProcessorOptions, vocabulary: int) -> None:
    """PortError for biased or forced tokens that the vocabulary does not have, as
    transformers raises it.
    """
    sequences = {
        name: tuple(itertools.chain.from_iterable(options.get(name, ())))
        for name in ("sequence_bias", "bad_words_ids")
    }
    for name, ids in (sequences | _forced_tokens(options)).items():
        outside = [token for token in ids if token >= vocabulary]
        if outside:
            raise PortError(
                f"the vocabulary has {vocabulary} tokens, and these are not among them: {outside}",
                where=name,
            )
