"""transformers' GenerationConfig, read into what the decoding loop takes; anything it cannot honour is an error."""

import copy
import dataclasses
import inspect
import math
import numbers
import operator
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin

from tpuport.errors import PortError

# Honoured by the loop, or with no effect on which tokens come out.
_SUPPORTED = frozenset(
    "max_length max_new_tokens min_length min_new_tokens do_sample temperature top_k top_p min_p repetition_penalty "
    "eos_token_id pad_token_id bos_token_id num_return_sequences stop_strings max_time max_cache_len use_cache "
    "cache_implementation transformers_version early_stopping length_penalty num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind "
    "compile_config disable_compile decoder_start_token_id".split()
)
# What transformers' generate takes beside fields of its config, and what only some models take.
_ARGUMENTS = frozenset(inspect.signature(vars(GenerationMixin)["generate"]).parameters) | frozenset(
    "inputs_embeds token_type_ids position_ids past_key_values cache_position decoder_input_ids".split()
)
# Ids and counts are int32 on the device.
_WIDEST = 2**31 - 1
# Values that ask for nothing, as transformers' own defaults do.
_NEUTRAL = (None, False, 0, 0.0)
_NEUTRAL_ONE = frozenset(
    "num_beams num_beam_groups typical_p encoder_repetition_penalty guidance_scale num_return_sequences".split()
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What one call of `generate` was asked for; lengths in tokens, `min_new` and `max_new` without the prompt."""

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


def resolve(
    model: torch.nn.Module,
    generation_config: GenerationConfig | None,
    options: dict[str, Any],
    prompt_length: int,
) -> Options:
    """Merge options over the given config over the model's own over transformers' defaults, and check every field.

    Raises:
        PortError: an option is unknown, not supported, out of range, or asks for no new token.
    """
    config = merge(model, generation_config, options)
    fields = {} if generation_config is None else vars(generation_config)
    given = {name for name, value in fields.items() if value is not None}
    _refuse_unsupported(config, given | set(options))
    max_new, min_new = _lengths(config, prompt_length, getattr(model.config, "max_position_embeddings", None))
    eos, pad = _ids(config.eos_token_id), config.pad_token_id
    result = Options(
        max_new=max_new,
        min_new=min_new,
        do_sample=_truth("do_sample", config.do_sample),
        temperature=_real("temperature", config.temperature, 1.0),
        top_k=min(_whole("top_k", config.top_k), _WIDEST),
        top_p=_real("top_p", config.top_p, 1.0),
        min_p=_real("min_p", config.min_p, 0.0),
        repetition_penalty=_real("repetition_penalty", config.repetition_penalty, 1.0),
        eos=eos,
        pad=_whole("pad_token_id", pad) if pad is not None else (eos[0] if eos else None),
        num_return_sequences=_whole("num_return_sequences", config.num_return_sequences, 1),
        stop_strings=_strings(config.stop_strings),
        max_time=None if config.max_time is None else _real("max_time", config.max_time, 0.0),
        max_cache_len=None if config.max_cache_len is None else _whole("max_cache_len", config.max_cache_len),
    )
    _check_ranges(result)
    return result


def merge(
    model: torch.nn.Module, generation_config: GenerationConfig | None, options: dict[str, Any]
) -> GenerationConfig:
    """The effective GenerationConfig, fields nobody set left None."""
    if not isinstance(generation_config, GenerationConfig | None):
        raise PortError(
            f"generation_config is a {type(generation_config).__name__}",
            where="generation_config",
            fix="give a transformers.GenerationConfig, or its fields by name: generate(..., max_new_tokens=64)",
        )
    config = copy.deepcopy(generation_config) if generation_config is not None else GenerationConfig()
    own = getattr(model, "generation_config", None)
    if own is not None:
        config.update(**own.to_dict(), defaults_only=True, allow_custom_entries=True)
    unknown = sorted(set(options) - set(vars(config)))
    if missing := sorted(_ARGUMENTS.intersection(unknown)):
        raise PortError(
            "generate() does not support these arguments of transformers' generate",
            where=", ".join(missing),
            fix="leave them out, or decode with your own loop over tpuport.compile(model)",
        )
    if unknown:
        raise PortError(
            "generate() got options that GenerationConfig does not have",
            where=", ".join(unknown),
            fix="see transformers.GenerationConfig for the names",
        )
    for name, value in options.items():
        setattr(config, name, value)
    asked = {**vars(generation_config), **options} if generation_config is not None else options
    if asked.get("max_new_tokens") is None and asked.get("max_length") is not None:
        # What the caller asks for wins over the max_new_tokens that came with the checkpoint.
        config.max_new_tokens = None
    if config.top_k is None and config.do_sample:
        config.top_k = 50  # transformers' own default
    return config


def _refuse_unsupported(config: GenerationConfig, given: set[str]) -> None:
    """PortError that names every option which would change the tokens, and whether the checkpoint asks for it."""
    asked = {
        name: value
        for name, value in vars(config).items()
        if not name.startswith("_") and name not in _SUPPORTED and not _asks_for_nothing(name, value)
    }
    if config.cache_implementation not in (None, "static", "dynamic", "hybrid"):
        asked["cache_implementation"] = config.cache_implementation
    if not asked:
        return
    own = [name for name in asked if name not in given]
    told = [
        f"{name}={value!r:.60}" + (" (of the checkpoint's generation_config.json)" if name in own else "")
        for name, value in asked.items()
    ]
    neutral = ", ".join(f"{name}={1 if name in _NEUTRAL_ONE else None}" for name in own)
    fix = f"pass {neutral} to do without" if own else "leave them out"
    raise PortError(
        "generate() does not support these options",
        where=", ".join(told),
        fix=f"{fix}, or decode with your own loop over tpuport.compile(model)",
    )


def _asks_for_nothing(name: str, value: Any) -> bool:
    if isinstance(value, dict | list | tuple | set | str):
        return not value
    if not isinstance(value, int | float | None):
        return False  # a tensor, say, which has no truth
    return value in _NEUTRAL or (name in _NEUTRAL_ONE and value == 1)


def _whole(name: str, value: Any, default: int = 0) -> int:
    """A whole number, `default` for None; PortError for anything else, such as 4.5, "4" and True."""
    if value is None:
        return default
    counted: Any = int(value) if isinstance(value, float) and value.is_integer() else value
    try:
        number = operator.index(counted)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise PortError(f"{name} is not a whole number", where=f"{name}={value!r:.60}")
    return number


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool | None):
        raise PortError(f"{name} is not True or False", where=f"{name}={value!r:.60}")
    return bool(value)


def _real(name: str, value: Any, default: float) -> float:
    """A finite number, `default` for None; PortError for anything else."""
    if value is None:
        return default
    single = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    if not isinstance(single, numbers.Real) or isinstance(single, bool) or not math.isfinite(single):
        raise PortError(f"{name} is not a finite number", where=f"{name}={value!r:.60}")
    return float(single)


def _ids(value: Any) -> tuple[int, ...]:
    """Token ids out of one, several or a tensor of them; those that no token can have, such as -1, ask for nothing."""
    values = value.tolist() if isinstance(value, torch.Tensor) or hasattr(value, "tolist") else value
    values = () if values is None else values if isinstance(values, list | tuple | set) else (values,)
    return tuple(e for e in (_whole("eos_token_id", one) for one in values) if 0 <= e <= _WIDEST)


def _lengths(config: GenerationConfig, prompt_length: int, known: int | None) -> tuple[int, int]:
    """(max_new, min_new), by transformers' rules.

    max_new_tokens wins over max_length; with neither it is 20 new tokens, or what is left of the `known` positions.
    """
    if config.max_new_tokens is not None:
        name, max_new = "max_new_tokens", _whole("max_new_tokens", config.max_new_tokens)
    elif config.max_length is not None:
        name, max_new = "max_length", _whole("max_length", config.max_length) - prompt_length
    else:
        name, max_new = "max_position_embeddings", 20 if known is None else min(20, known - prompt_length)
    if max_new < 1:
        raise PortError(
            f"the prompt has {prompt_length} tokens, which leaves {max_new} to generate",
            where=name,
            fix="shorten the prompt, raise max_length, or set max_new_tokens",
        )
    if config.min_new_tokens is not None:
        return max_new, _whole("min_new_tokens", config.min_new_tokens)
    return max_new, max(_whole("min_length", config.min_length) - prompt_length, 0)


def check_padding(options: Options, rows: int, vocabulary: int, stops: bool) -> None:
    """PortError for a padding id outside the vocabulary, if a row may end before the others and be padded."""
    ends = stops or bool(options.eos)
    if options.pad is not None and ends and rows > 1 and not 0 <= options.pad < vocabulary:
        raise PortError(
            f"pad_token_id is {options.pad}, and the vocabulary has {vocabulary} tokens: a row that ends early is "
            "padded with it",
            where="pad_token_id",
            fix="give the id of a token, such as that of eos_token_id",
        )


def _strings(value: Any) -> tuple[str, ...]:
    values = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(one, str) and one for one in values):
        raise PortError(
            "stop_strings is neither a string nor a list of strings", where=f"stop_strings={value!r:.60}"
        )
    return tuple(values)


def _check_ranges(options: Options) -> None:
    wrong = {
        "temperature": options.temperature < 0.0 or (options.temperature == 0.0 and options.do_sample),
        "top_k": options.top_k < 0,
        "top_p": not 0.0 <= options.top_p <= 1.0,
        "min_p": not 0.0 <= options.min_p <= 1.0,
        "repetition_penalty": options.repetition_penalty <= 0.0,
        "num_return_sequences": options.num_return_sequences < 1,
        "min_new_tokens": not 0 <= options.min_new <= options.max_new,
    }
    names = [name for name, bad in wrong.items() if bad]
    if names:
        raise PortError(
            "generation options out of range",
            where=", ".join(names),
            fix="temperature, repetition_penalty > 0 (do_sample=False instead of temperature=0); top_k >= 0; "
            "top_p, min_p in [0, 1]; 0 <= min_new_tokens <= the new",
        )
    if options.num_return_sequences > 1 and not options.do_sample:
        raise PortError(
            "greedy decoding gives the same sequence every time",
            where=f"num_return_sequences={options.num_return_sequences}",
            fix="set do_sample=True",
        )
