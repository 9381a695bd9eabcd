"""transformers' GenerationConfig, as the options of the decoding loop; anything it
cannot honour is an error.
"""

import copy
import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from transformers import GenerationConfig, GenerationMixin

from tpuport.base.mappings import without
from tpuport.errors import PortError
from tpuport.generation.cache_arguments import CACHE_NAMES
from tpuport.generation.class_loops import has_class_generate
from tpuport.generation.option_values import (
    LARGEST_INT,
    read_bool,
    read_float,
    read_ids,
    read_int,
    read_strings,
)
from tpuport.generation.processor_options import (
    PROCESSOR_FIELDS,
    ProcessorOptions,
    read_processor_options,
)

logger = logging.getLogger("tpuport")

# Ways to decode several tokens at a time that give the tokens, or the distribution, of
# decoding one by one, and need a part of the model that `generate` does not run.
_ASSISTED: Final = frozenset({"assistant_early_exit", "use_mtp"})
# What transformers' generate takes beside fields of its config, and what only some
# models take.
_ARGUMENTS: Final = CACHE_NAMES.union(
    inspect.signature(vars(GenerationMixin)["generate"]).parameters,
    "inputs_embeds token_type_ids position_ids cache_position decoder_input_ids".split(),
)
# Values that ask for nothing, as transformers' own defaults do. For some fields 1 is
# one of them.
_NEUTRAL: Final = (None, False, 0, 0.0)
_NEUTRAL_BY_NAME: Final[dict[str, int]] = dict.fromkeys(
    ["num_beam_groups"],
    1,
)
_OUT_OF_TRANSFORMERS: Final = "which transformers has taken out of its own generate"
# Why an option is not supported.
_REASONS: Final = {
    "num_beam_groups": f"diverse beam search, {_OUT_OF_TRANSFORMERS}",
    "diversity_penalty": f"diverse beam search, {_OUT_OF_TRANSFORMERS}",
    "constraints": f"constrained beam search, {_OUT_OF_TRANSFORMERS}",
    "force_words_ids": f"constrained beam search, {_OUT_OF_TRANSFORMERS}",
    "penalty_alpha": f"contrastive search, {_OUT_OF_TRANSFORMERS}",
    "dola_layers": f"DoLa, {_OUT_OF_TRANSFORMERS}",
    "low_memory": "of beam search, where transformers refuses it too",
    "cache_implementation": "the cache stays on the device, in the model's dtype or with kv_cache='int8'",
    "cache_config": "of transformers' quantized cache; kv_cache='int8' keeps keys and values in eight bits",
    "output_attentions": "the loop on the device returns no weights of attention",
    "output_hidden_states": "the loop on the device returns no hidden states",
    "token_healing": "it changes the prompt: pass input_ids=model.heal_tokens(input_ids, tokenizer)",
    "prefill_chunk_size": "for decoder-only models: transformers cuts the mask of the "
    "encoder's tokens by the decoder's chunks",
    "is_assistant": "pass the assistant as assistant_model",
    "assistant_ensemble_weight": "drafts would change what is drawn",
    "speculation_type": "only a language model, or the text itself, can draft",
    "continuous_batching_config": "of transformers' own service, which generate does not start",
}
# Of one prompt; more would not fit the memory of any device.
_MOST_SEQUENCES = 65_536
_DEFAULT_TOP_K: Final = 50  # transformers' own
_DEFAULT_NEW_TOKENS: Final = 20  # transformers' own
_DEFAULT_NGRAM_SIZE: Final = 2  # transformers' own
_USER_LOOP: Final = "decode with your own loop over tpuport.compile(model)"


def _read_early_stopping(name: str, value: Any) -> bool | Literal["never"]:
    return "never" if value == "never" else read_bool(name, value)


def _read_scale(name: str, value: Any) -> float | None:
    scale = read_float(name, value)
    return None if scale == 1.0 else scale


def _read_top_k(name: str, value: Any) -> int:
    return min(read_int(name, value), LARGEST_INT)


def _read_count(name: str, value: Any) -> int | None:
    """A number from 1 on, or None; PortError for anything else."""
    count = read_int(name, value, None)
    if count is not None and count < 1:
        raise PortError("tokens are counted from 1", where=f"{name}={count}")
    return count


def _read_watermark(name: str, value: Any) -> Any:
    """transformers' configuration of a watermark, from itself or a dictionary;
    PortError for anything else.
    """
    try:
        config: Any = GenerationConfig(watermarking_config=value).watermarking_config
        config.validate()
    except (AttributeError, TypeError, ValueError) as error:
        raise PortError(
            f"transformers does not take this watermark: {error}",
            where=f"{name}={value!r:.60}",
        ) from None
    return config


def _option(
    default: Any, read: Callable[[str, Any], Any], name: str | None = None
) -> Any:
    """A field of `Options` that is read as it is.

    Args:
        default: its value where nobody asks for another.
        read: gives its value from the name and the value in the config.
        name: in the config, if it is another one.
    """
    return dataclasses.field(default=default, metadata={"read": read, "name": name})


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one call of `generate`; lengths in tokens, `min_new` and `max_new`
    without the prompt.

    Attributes:
        num_beams: 1 means no beam search, which length_penalty and early_stopping are
            for.
        prompt_lookup: how many tokens of the text itself are a draft, and how many are
            looked for; None for no draft.
        prefill_chunk_size: columns of the prompt that run at a time, None for all.
        return_dict: whether transformers' output class is returned; `output_scores` and
            `output_logits` are False without it.
    """

    max_new: int
    min_new: int
    eos: tuple[int, ...] = _option((), read_ids, "eos_token_id")
    pad: int | None = _option(None, read_int, "pad_token_id")
    do_sample: bool = _option(False, read_bool)
    temperature: float = _option(1.0, read_float)
    top_k: int = _option(0, _read_top_k)
    top_p: float = _option(1.0, read_float)
    min_p: float = _option(0.0, read_float)
    repetition_penalty: float = _option(1.0, read_float)
    num_return_sequences: int = _option(1, read_int)
    stop_strings: tuple[str, ...] = _option((), read_strings)
    max_time: float | None = _option(None, read_float)
    max_cache_len: int | None = _option(None, read_int)
    num_beams: int = _option(1, read_int)
    length_penalty: float = _option(1.0, read_float)
    early_stopping: bool | Literal["never"] = _option(False, _read_early_stopping)
    return_dict: bool = _option(False, read_bool, "return_dict_in_generate")
    output_scores: bool = _option(False, read_bool)
    output_logits: bool = _option(False, read_bool)
    watermarking_config: Any = _option(None, _read_watermark)  # noqa: RUF009
    guidance_scale: float | None = _option(None, _read_scale)
    prefill_chunk_size: int | None = _option(None, _read_count)
    prompt_lookup: tuple[int, int] | None = None
    processors: ProcessorOptions = dataclasses.field(default_factory=dict)

    @property
    def rows_per_prompt(self) -> int:
        """Rows of the batch that decode one prompt."""
        return max(self.num_beams, self.num_return_sequences)

    @property
    def least_tokens(self) -> int:
        """How many tokens each filter of sampling leaves: beams have to go on when
        others end.
        """
        if self.num_beams == 1:
            return 1
        return max(len(self.eos), 1) + 1


# By the name of the option: its name in the config, and what reads it.
_READERS: Final = {
    field.name: (field.metadata["name"] or field.name, field.metadata["read"])
    for field in dataclasses.fields(Options)
    if field.metadata
}
# Honoured by the loop, or without effect on which tokens come out.
_SUPPORTED: Final = PROCESSOR_FIELDS.union(
    (name for name, _ in _READERS.values()),
    "max_length max_new_tokens min_length min_new_tokens bos_token_id use_cache cache_implementation "
    "transformers_version num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
    "assistant_lookbehind target_lookbehind compile_config disable_compile decoder_start_token_id "
    "max_matching_ngram_size prompt_lookup_num_tokens".split(),
)


def read_options(
    model: Any,
    generation_config: GenerationConfig | None,
    named: Mapping[str, Any],
    prompt_length: int,
) -> Options:
    """Merge and check all fields.

    A field that is passed by name comes before the passed config's, then the model's
    own, then transformers' defaults.

    Args:
        named: fields that were passed by name.

    Raises:
        PortError: an option is unknown, not supported, out of range, or asks for no new
            token.
    """
    config = merge_configs(model, generation_config, named)
    # What the user asked for and what came with the checkpoint have different remedies.
    fields = vars(generation_config or GenerationConfig())
    passed = {name for name, value in fields.items() if value is not None}
    _refuse_unsupported(config, passed.union(named), model)
    positions = getattr(model.config, "max_position_embeddings", None) or LARGEST_INT
    values = {
        field: read(name, getattr(config, name))
        for field, (name, read) in _READERS.items()
        if getattr(config, name) is not None
    }
    eos = values.get("eos", ())
    # As in transformers, the first EOS id takes the place of a padding id.
    values.setdefault("pad", next(iter(eos), None))
    if not values.get("return_dict"):
        # As in transformers, the steps' outputs are asked for together with the class
        # that has them.
        values |= {"output_scores": False, "output_logits": False}
    options = Options(
        max_new=_max_new_tokens(config, prompt_length, positions),
        min_new=_min_new_tokens(config, prompt_length),
        prompt_lookup=_read_prompt_lookup(config),
        processors=read_processor_options(config, eos),
        **values,
    )
    _check_ranges(options)
    return options


def _read_prompt_lookup(config: GenerationConfig) -> tuple[int, int] | None:
    """How many tokens to draft, and how many to look for."""
    # As in transformers, 0 asks for nothing.
    count = read_int("prompt_lookup_num_tokens", config.prompt_lookup_num_tokens, None)
    if not count:
        return None
    _read_count("prompt_lookup_num_tokens", count)
    size = _read_count("max_matching_ngram_size", config.max_matching_ngram_size)
    return count, size or _DEFAULT_NGRAM_SIZE


def merge_configs(
    model: Any, generation_config: GenerationConfig | None, named: Mapping[str, Any]
) -> GenerationConfig:
    """The effective GenerationConfig; fields that nobody set stay None."""
    if generation_config is None:
        generation_config = GenerationConfig()
    if not isinstance(generation_config, GenerationConfig):
        raise PortError(
            f"generation_config is a {type(generation_config).__name__}",
            where="generation_config",
            fix="give a transformers.GenerationConfig, or its fields by name: generate(..., max_new_tokens=64)",
        )
    # A copy, because the caller may use the config for other calls.
    config = copy.deepcopy(generation_config)
    # Not every release of transformers has all fields.
    vars(config).update(dict.fromkeys(_SUPPORTED - vars(config).keys()))
    model_config = getattr(model, "generation_config", None)
    if model_config is not None:
        config.update(
            **model_config.to_dict(), defaults_only=True, allow_custom_entries=True
        )
    _check_names(named, config)
    for name, value in named.items():
        setattr(config, name, value)
    passed = {**vars(generation_config), **named}
    if passed.get("max_new_tokens") is None and passed.get("max_length") is not None:
        # The caller's length comes before the max_new_tokens that came with the
        # checkpoint.
        config.max_new_tokens = None
    is_default = config.top_k is None and "top_k" not in named
    if is_default and read_bool("do_sample", config.do_sample):
        config.top_k = _DEFAULT_TOP_K
    return config


def _check_names(named: Mapping[str, Any], config: GenerationConfig) -> None:
    unknown = named.keys() - vars(config).keys()
    # Arguments of transformers' own `generate` get a better message than a misspelt
    # option.
    arguments = sorted(_ARGUMENTS & unknown)
    if arguments:
        raise PortError(
            "generate() does not support these arguments of transformers' generate",
            where=", ".join(arguments),
            fix=f"leave them out, or {_USER_LOOP}",
        )
    if unknown:
        raise PortError(
            "generate() got options that GenerationConfig does not have",
            where=", ".join(sorted(unknown)),
            fix="see transformers.GenerationConfig for the names",
        )


def _refuse_unsupported(config: GenerationConfig, passed: set[str], model: Any) -> None:
    """PortError that names every option which would change the tokens, and whether it
    comes from the checkpoint.

    Args:
        passed: the options that the caller gave.
    """
    # What is not a field of GenerationConfig is for the own `generate` of the model's
    # class, if it has one; or it was given to `from_pretrained` for the model's config,
    # and transformers puts that into both.
    known = {
        name
        for name in vars(config).keys() - vars(GenerationConfig()).keys()
        if has_class_generate(model) or hasattr(model.config, name)
    }
    unsupported = {
        name: value
        for name, value in vars(config).items()
        if not (
            name.startswith("_")
            or name in _SUPPORTED
            or name in known
            or _is_neutral(name, value)
        )
    }
    assisted = sorted(_ASSISTED & unsupported.keys())
    if assisted:
        logger.warning(
            "%s: generate decodes token by token, which gives the same tokens",
            ", ".join(assisted),
        )
    unsupported = without(unsupported, _ASSISTED)
    # What else a number of beams may be, such as a vector, is refused elsewhere.
    if not isinstance(config.num_beams, int) or config.num_beams == 1:
        # transformers reads it in beam search alone, where it refuses it.
        unsupported.pop("low_memory", None)
    if config.prefill_chunk_size is not None and getattr(
        model.config, "is_encoder_decoder", False
    ):
        unsupported["prefill_chunk_size"] = config.prefill_chunk_size
    # The others of transformers' caches quantise or offload, and give other tokens or
    # need a host.
    if config.cache_implementation not in (None, "static", "dynamic", "hybrid"):
        unsupported["cache_implementation"] = config.cache_implementation
    if not unsupported:
        return
    descriptions = []
    neutral_values = []
    for name, value in unsupported.items():
        description = f"{name}={value!r:.60}"
        if name in _REASONS:
            description += f" ({_REASONS[name]})"
        # The user cannot leave out what came with the checkpoint: it has to be
        # overruled.
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
        fix=f"{fix}, or {_USER_LOOP}",
    )


def _is_neutral(name: str, value: Any) -> bool:
    """Whether a value asks for nothing."""
    if isinstance(value, dict | list | tuple | set | str):
        return not value
    if not isinstance(value, int | float | None):
        return False  # a tensor, for example, whose truth may be undefined
    return value in (*_NEUTRAL, _NEUTRAL_BY_NAME.get(name))


def _max_new_tokens(
    config: GenerationConfig, prompt_length: int, positions: int
) -> int:
    """The most new tokens, by transformers' rules.

    max_new_tokens comes before max_length; without either it is 20 new tokens, or what
    is left of the positions that the model knows.
    """
    if config.max_new_tokens is not None:
        name = "max_new_tokens"
        max_new = read_int(name, config.max_new_tokens)
    elif config.max_length is not None:
        name = "max_length"
        max_new = read_int(name, config.max_length) - prompt_length
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
        return read_int("min_new_tokens", config.min_new_tokens)
    return max(read_int("min_length", config.min_length) - prompt_length, 0)


def check_padding(
    options: Options, rows: int, vocabulary: int, has_criteria: bool
) -> None:
    """PortError for a padding id outside the vocabulary, if a row may end before the
    others and be padded.
    """
    may_be_padded = rows > 1 and (has_criteria or bool(options.eos))
    if options.pad is not None and may_be_padded and not 0 <= options.pad < vocabulary:
        raise PortError(
            f"pad_token_id is {options.pad}, and the vocabulary has {vocabulary} tokens: a row that ends early is "
            "padded with it",
            where="pad_token_id",
            fix="give the id of a token, such as that of eos_token_id",
        )


def _check_ranges(options: Options) -> None:
    is_valid = {
        "temperature": options.temperature > 0.0
        or (options.temperature == 0.0 and not options.do_sample),
        "top_k": options.top_k >= 0,
        "top_p": 0.0 <= options.top_p <= 1.0,
        "min_p": 0.0 <= options.min_p <= 1.0,
        "repetition_penalty": options.repetition_penalty > 0.0,
        "num_return_sequences": 1 <= options.num_return_sequences <= _MOST_SEQUENCES,
        "num_beams": 1 <= options.num_beams <= _MOST_SEQUENCES,
        "min_new_tokens": 0 <= options.min_new <= options.max_new,
    }
    wrong = [name for name, valid in is_valid.items() if not valid]
    if wrong:
        raise PortError(
            "generation options out of range",
            where=", ".join(wrong),
            fix="temperature, repetition_penalty > 0 (do_sample=False instead of temperature=0); top_k >= 0; "
            "top_p, min_p in [0, 1]; 0 <= min_new_tokens <= the new; num_beams, num_return_sequences from 1 to "
            f"{_MOST_SEQUENCES:,}",
        )
    # transformers refuses both too.
    if 1 < options.num_beams < options.num_return_sequences:
        raise PortError(
            f"a search with {options.num_beams} beams finds no more sequences than that",
            where=f"num_return_sequences={options.num_return_sequences}",
            fix=f"set num_beams={options.num_return_sequences}",
        )
    if (
        options.num_return_sequences > 1
        and options.num_beams == 1
        and not options.do_sample
    ):
        raise PortError(
            "greedy decoding gives the same sequence every time",
            where=f"num_return_sequences={options.num_return_sequences}",
            fix="set do_sample=True, or num_beams",
        )
