"""transformers' GenerationConfig, as the options of the decoding loop; anything it cannot honour is an error."""

import contextlib
import copy
import dataclasses
import inspect
import math
import numbers
import operator
from typing import Any, Final

import torch
from transformers import GenerationConfig, GenerationMixin

from tpuport.errors import PortError

# Honoured by the loop, or without effect on which tokens come out.
_SUPPORTED: Final = frozenset(
    "max_length max_new_tokens min_length min_new_tokens do_sample temperature top_k top_p min_p repetition_penalty "
    "eos_token_id pad_token_id bos_token_id num_return_sequences stop_strings max_time max_cache_len use_cache "
    "cache_implementation transformers_version early_stopping length_penalty num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind "
    "compile_config disable_compile decoder_start_token_id".split()
)
# What transformers' generate takes beside fields of its config, and what only some models take.
_ARGUMENTS: Final = frozenset(inspect.signature(vars(GenerationMixin)["generate"]).parameters) | frozenset(
    "inputs_embeds token_type_ids position_ids past_key_values cache_position decoder_input_ids".split()
)
# Ids and counts are int32 on the device.
_LARGEST_INT: Final = 2**31 - 1
# Values that ask for nothing, as transformers' own defaults do. For some fields 1 is one of them.
_NEUTRAL: Final = (None, False, 0, 0.0)
_NEUTRAL_BY_NAME: Final[dict[str, int]] = dict.fromkeys(
    "num_beams num_beam_groups typical_p encoder_repetition_penalty guidance_scale num_return_sequences".split(),
    1,
)
# Token ids, of which 0 is one.
_FORCED_TOKENS: Final = frozenset({"forced_bos_token_id", "forced_eos_token_id"})
_DEFAULT_TOP_K: Final = 50  # transformers' own
_DEFAULT_NEW_TOKENS: Final = 20  # transformers' own
_OWN_LOOP: Final = "decode with your own loop over tpuport.compile(model)"


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one call of `generate`; lengths in tokens, `min_new` and `max_new` without the prompt."""

    max_new: int
    min_new: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    eos: tuple[int, ...]
    pad: int | None
    num_return_sequences: int
    stop_strings: tuple[str, ...]
    max_time: float | None
    max_cache_len: int | None


def read_options(
    model: Any,
    generation_config: GenerationConfig | None,
    named: dict[str, Any],
    prompt_length: int,
) -> Options:
    """Merge and check all fields.

    A field that is passed by name comes before the passed config's, then the model's own, then transformers' defaults.

    Args:
        named: fields that were passed by name.

    Raises:
        PortError: an option is unknown, not supported, out of range, or asks for no new token.
    """
    if generation_config is None:
        generation_config = GenerationConfig()
    config = merge_configs(model, generation_config, named)
    # What the user asked for and what came with the checkpoint have different remedies.
    passed = {name for name, value in vars(generation_config).items() if value is not None}
    _refuse_unsupported(config, passed.union(named))
    positions = getattr(model.config, "max_position_embeddings", None) or _LARGEST_INT
    max_new = _max_new_tokens(config, prompt_length, positions)
    eos = _read_ids(config.eos_token_id)
    options = Options(
        max_new=max_new,
        min_new=_min_new_tokens(config, prompt_length),
        do_sample=_read_bool("do_sample", config.do_sample),
        temperature=_read_float("temperature", config.temperature, 1.0),
        top_k=min(_read_int("top_k", config.top_k), _LARGEST_INT),
        top_p=_read_float("top_p", config.top_p, 1.0),
        min_p=_read_float("min_p", config.min_p),
        repetition_penalty=_read_float("repetition_penalty", config.repetition_penalty, 1.0),
        eos=eos,
        # As in transformers, the first EOS id takes the place of a padding id.
        pad=_read_int("pad_token_id", config.pad_token_id, next(iter(eos), None)),
        num_return_sequences=_read_int("num_return_sequences", config.num_return_sequences, 1),
        stop_strings=_read_strings(config.stop_strings),
        max_time=_read_float("max_time", config.max_time, None),
        max_cache_len=_read_int("max_cache_len", config.max_cache_len, None),
    )
    _check_ranges(options)
    return options


def merge_configs(model: Any, generation_config: GenerationConfig, named: dict[str, Any]) -> GenerationConfig:
    """The effective GenerationConfig; fields that nobody set stay None."""
    if not isinstance(generation_config, GenerationConfig):
        raise PortError(
            f"generation_config is a {type(generation_config).__name__}",
            where="generation_config",
            fix="give a transformers.GenerationConfig, or its fields by name: generate(..., max_new_tokens=64)",
        )
    # A copy, because the caller may use the config for other calls.
    config = copy.deepcopy(generation_config)
    model_config = getattr(model, "generation_config", None)
    if model_config is not None:
        config.update(**model_config.to_dict(), defaults_only=True, allow_custom_entries=True)
    _check_names(named, config)
    for name, value in named.items():
        setattr(config, name, value)
    passed = {**vars(generation_config), **named}
    if passed.get("max_new_tokens") is None and passed.get("max_length") is not None:
        # The caller's length comes before the max_new_tokens that came with the checkpoint.
        config.max_new_tokens = None
    if config.top_k is None and config.do_sample:
        config.top_k = _DEFAULT_TOP_K
    return config


def _check_names(named: dict[str, Any], config: GenerationConfig) -> None:
    unknown = named.keys() - vars(config).keys()
    # Arguments of transformers' own `generate` get a better message than a misspelt option.
    arguments = sorted(_ARGUMENTS & unknown)
    if arguments:
        raise PortError(
            "generate() does not support these arguments of transformers' generate",
            where=", ".join(arguments),
            fix=f"leave them out, or {_OWN_LOOP}",
        )
    if unknown:
        raise PortError(
            "generate() got options that GenerationConfig does not have",
            where=", ".join(sorted(unknown)),
            fix="see transformers.GenerationConfig for the names",
        )


def _refuse_unsupported(config: GenerationConfig, passed: set[str]) -> None:
    """PortError that names every option which would change the tokens, and whether it comes from the checkpoint.

    Args:
        passed: the options that the caller gave.
    """
    unsupported = {
        name: value
        for name, value in vars(config).items()
        if not (name.startswith("_") or name in _SUPPORTED or _is_neutral(name, value))
    }
    # The others of transformers' caches quantise or offload, and give other tokens or need a host.
    if config.cache_implementation not in (None, "static", "dynamic", "hybrid"):
        unsupported["cache_implementation"] = config.cache_implementation
    if not unsupported:
        return
    descriptions = []
    neutral_values = []
    for name, value in unsupported.items():
        description = f"{name}={value!r:.60}"
        # The user cannot leave out what came with the checkpoint: it has to be overruled.
        if name not in passed:
            description += " (of the checkpoint's generation_config.json)"
            neutral_values.append(f"{name}={_NEUTRAL_BY_NAME.get(name)}")
        descriptions.append(description)
    fix = "leave them out"
    if neutral_values:
        fix = f"pass {', '.join(neutral_values)} to do without"
    raise PortError(
        "generate() does not support these options",
        where=", ".join(descriptions),
        fix=f"{fix}, or {_OWN_LOOP}",
    )


def _is_neutral(name: str, value: Any) -> bool:
    """Whether a value asks for nothing."""
    if isinstance(value, dict | list | tuple | set | str):
        return not value
    if not isinstance(value, int | float | None):
        return False  # a tensor, for example, whose truth may be undefined
    if name in _FORCED_TOKENS:
        return value is None
    return value in (*_NEUTRAL, _NEUTRAL_BY_NAME.get(name))


def _max_new_tokens(config: GenerationConfig, prompt_length: int, positions: int) -> int:
    """The most new tokens, by transformers' rules.

    max_new_tokens comes before max_length; without either it is 20 new tokens, or what is left of the positions that
    the model knows.
    """
    if config.max_new_tokens is not None:
        name = "max_new_tokens"
        max_new = _read_int(name, config.max_new_tokens)
    elif config.max_length is not None:
        name = "max_length"
        max_new = _read_int(name, config.max_length) - prompt_length
    else:
        name = "max_position_embeddings"
        max_new = min(_DEFAULT_NEW_TOKENS, positions - prompt_length)
    if max_new < 1:
        raise PortError(
            f"the prompt has {prompt_length} tokens, which leaves {max_new} to generate",
            where=name,
            fix="shorten the prompt, raise max_length, or set max_new_tokens",
        )
    return max_new


def _min_new_tokens(config: GenerationConfig, prompt_length: int) -> int:
    if config.min_new_tokens is not None:
        return _read_int("min_new_tokens", config.min_new_tokens)
    return max(_read_int("min_length", config.min_length) - prompt_length, 0)


def check_padding(options: Options, rows: int, vocabulary: int, has_criteria: bool) -> None:
    """PortError for a padding id outside the vocabulary, if a row may end before the others and be padded."""
    may_be_padded = rows > 1 and (has_criteria or bool(options.eos))
    if options.pad is not None and may_be_padded and not 0 <= options.pad < vocabulary:
        raise PortError(
            f"pad_token_id is {options.pad}, and the vocabulary has {vocabulary} tokens: a row that ends early is "
            "padded with it",
            where="pad_token_id",
            fix="give the id of a token, such as that of eos_token_id",
        )


def _read_int(name: str, value: Any, default: int | None = 0) -> Any:
    """A whole number, `default` for None; PortError for anything else, such as 4.5, "4" and True."""
    match value:
        case None:
            return default
        case bool():
            pass  # to Python, True is an integer
        case float() if value.is_integer():
            return int(value)  # a computed length, such as 0.5 * limit
        case _:
            with contextlib.suppress(TypeError):
                return operator.index(value)
    raise PortError(f"{name} is not a whole number", where=f"{name}={value!r:.60}")


def _read_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool | None):
        raise PortError(f"{name} is not True or False", where=f"{name}={value!r:.60}")
    return bool(value)


def _read_float(name: str, value: Any, default: float | None = 0.0) -> Any:
    """A finite number, `default` for None; PortError for anything else."""
    if value is None:
        return default
    number = value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        number = value.item()
    match number:
        case bool():
            pass
        case numbers.Real() if math.isfinite(number):
            return float(number)
    raise PortError(f"{name} is not a finite number", where=f"{name}={value!r:.60}")


def _read_ids(value: Any) -> tuple[int, ...]:
    """Token ids, from one, several or a tensor of them; those that no token can have, such as -1, are dropped."""
    if value is None:
        return ()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple | set):
        value = (value,)
    ids = [_read_int("eos_token_id", element) for element in value]
    return tuple(token_id for token_id in ids if 0 <= token_id <= _LARGEST_INT)


def _read_strings(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ()
        case str() if value:
            return (value,)
        case list() | tuple() if all(isinstance(text, str) and text for text in value):
            return tuple(value)
    raise PortError(
        "stop_strings is neither a string nor a list of strings", where=f"stop_strings={value!r:.60}"
    )


def _check_ranges(options: Options) -> None:
    is_valid = {
        "temperature": options.temperature > 0.0 or (options.temperature == 0.0 and not options.do_sample),
        "top_k": options.top_k >= 0,
        "top_p": 0.0 <= options.top_p <= 1.0,
        "min_p": 0.0 <= options.min_p <= 1.0,
        "repetition_penalty": options.repetition_penalty > 0.0,
        "num_return_sequences": options.num_return_sequences >= 1,
        "min_new_tokens": 0 <= options.min_new <= options.max_new,
    }
    wrong = [name for name, valid in is_valid.items() if not valid]
    if wrong:
        raise PortError(
            "generation options out of range",
            where=", ".join(wrong),
            fix="temperature, repetition_penalty > 0 (do_sample=False instead of temperature=0); top_k >= 0; "
            "top_p, min_p in [0, 1]; 0 <= min_new_tokens <= the new",
        )
    # transformers refuses it too.
    if options.num_return_sequences > 1 and not options.do_sample:
        raise PortError(
            "greedy decoding gives the same sequence every time",
            where=f"num_return_sequences={options.num_return_sequences}",
            fix="set do_sample=True",
        )
