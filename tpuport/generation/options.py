"""transformers' GenerationConfig, read into what the decoding loop takes; anything it cannot honour is an error."""

import copy
import dataclasses
from typing import Any

import torch
from transformers import GenerationConfig

from tpuport.errors import PortError

# Honoured by the loop, or with no effect on which tokens come out.
_SUPPORTED = frozenset(
    "max_length max_new_tokens min_length min_new_tokens do_sample temperature top_k top_p min_p repetition_penalty "
    "eos_token_id pad_token_id bos_token_id num_return_sequences stop_strings max_time max_cache_len use_cache "
    "cache_implementation transformers_version early_stopping length_penalty num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind "
    "compile_config disable_compile".split()
)
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
    _refuse_unsupported(config)
    max_new, min_new = _lengths(config, prompt_length)
    eos = config.eos_token_id
    eos = () if eos is None else tuple(int(e) for e in torch.as_tensor(eos).reshape(-1).tolist())
    result = Options(
        max_new=max_new,
        min_new=min_new,
        do_sample=bool(config.do_sample),
        temperature=float(1.0 if config.temperature is None else config.temperature),
        top_k=int(config.top_k or 0),
        top_p=float(1.0 if config.top_p is None else config.top_p),
        min_p=float(config.min_p or 0.0),
        repetition_penalty=float(1.0 if config.repetition_penalty is None else config.repetition_penalty),
        eos=eos,
        pad=config.pad_token_id if config.pad_token_id is not None else (eos[0] if eos else None),
        num_return_sequences=int(config.num_return_sequences or 1),
        stop_strings=_strings(config.stop_strings),
        max_time=config.max_time,
        max_cache_len=config.max_cache_len,
    )
    _check_ranges(result)
    return result


def merge(
    model: torch.nn.Module, generation_config: GenerationConfig | None, options: dict[str, Any]
) -> GenerationConfig:
    """The effective GenerationConfig, fields nobody set left None."""
    config = copy.deepcopy(generation_config) if generation_config is not None else GenerationConfig()
    own = getattr(model, "generation_config", None)
    if own is not None:
        config.update(**own.to_dict(), defaults_only=True, allow_custom_entries=True)
    unknown = sorted(set(options) - set(vars(config)))
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


def _refuse_unsupported(config: GenerationConfig) -> None:
    asked = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name in _SUPPORTED:
            continue
        neutral = (
            value in _NEUTRAL or (name in _NEUTRAL_ONE and value == 1)
            if not isinstance(value, dict)
            else not value
        )
        if not neutral:
            asked[name] = value
    if config.use_cache is False:
        asked["use_cache"] = False
    if config.cache_implementation not in (None, "static", "dynamic", "hybrid"):
        asked["cache_implementation"] = config.cache_implementation
    if asked:
        raise PortError(
            "generate() does not support these options",
            where=", ".join(f"{name}={value!r}" for name, value in asked.items()),
            fix="leave them out, or decode with your own loop over tpuport.compile(model)",
        )


def _lengths(config: GenerationConfig, prompt_length: int) -> tuple[int, int]:
    """(max_new, min_new), by transformers' rules: max_new_tokens wins over max_length, 20 new tokens by default."""
    if config.max_new_tokens is not None:
        max_new = int(config.max_new_tokens)
    elif config.max_length is not None:
        max_new = int(config.max_length) - prompt_length
    else:
        max_new = 20
    if max_new < 1:
        raise PortError(
            f"the prompt has {prompt_length} tokens, which leaves {max_new} to generate",
            where="max_length" if config.max_new_tokens is None else "max_new_tokens",
            fix="raise max_length, or set max_new_tokens",
        )
    if config.min_new_tokens is not None:
        return max_new, int(config.min_new_tokens)
    return max_new, max(int(config.min_length or 0) - prompt_length, 0)


def _strings(value: str | list[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _check_ranges(options: Options) -> None:
    wrong = {
        "temperature": options.temperature <= 0.0,
        "top_k": options.top_k < 0,
        "top_p": not 0.0 <= options.top_p <= 1.0,
        "min_p": not 0.0 <= options.min_p <= 1.0,
        "repetition_penalty": options.repetition_penalty <= 0.0,
        "num_return_sequences": options.num_return_sequences < 1,
        "eos_token_id": any(e < 0 for e in options.eos),
        "min_new_tokens": options.min_new > options.max_new,
    }
    names = [name for name, bad in wrong.items() if bad]
    if names:
        raise PortError(
            "generation options out of range",
            where=", ".join(names),
            fix="temperature, repetition_penalty > 0; top_k >= 0; top_p, min_p in [0, 1]; min_new_tokens <= the new",
        )
    if options.num_return_sequences > 1 and not options.do_sample:
        raise PortError(
            "greedy decoding gives the same sequence every time",
            where=f"num_return_sequences={options.num_return_sequences}",
            fix="set do_sample=True",
        )
