"""How long a sequence may get: positions that the model knows, its rotary tables, its
local windows, and the cache.
"""

from typing import Any, Final

from tpuport.errors import PortError
from tpuport.generation.decoding_cache import layer_types_with_window
from tpuport.generation.generation_options import Options
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.prompts import Prompts, bucket_length
from tpuport.patches import transformers_rotary

# How configs call the positions that a decoder has, those of encoder-decoders first.
_POSITION_FIELDS: Final = (
    "max_target_positions",
    "max_decoder_position_embeddings",
    "max_position_embeddings",
)


def cache_length(model: Any, prompts: Prompts, options: Options) -> int:
    """Columns of the cache; the bucket's own padding takes columns as the prompt does.

    PortError if the requested tokens exceed max_cache_len or the positions that the
    model knows.
    """
    check_length(model, prompts.length, options)
    new_tokens = options.max_new
    # A length that the user fixes, so that requests for fewer tokens run in the same
    # program.
    if options.max_cache_len is not None:
        new_tokens = options.max_cache_len - prompts.length
    # A bucket too, so that requests of similar lengths share a program.
    columns = bucket_length(prompts.tokens.shape[1] + new_tokens)
    if not isinstance(model, LanguageModel):
        check_local_window(model, columns)
    return columns


def check_length(model: Any, length: int, options: Options) -> None:
    """PortError if the tokens requested after a prompt of some length exceed
    max_cache_len or the positions that the model knows.
    """
    limits = {"max_cache_len": options.max_cache_len} | position_limit(model)
    for name, limit in limits.items():
        if limit is not None and length + options.max_new > limit:
            raise PortError(
                f"a prompt of {length} tokens and {options.max_new} new ones do not fit {name} = {limit}",
                where=name,
                fix="shorten the prompt, or ask for fewer new tokens",
            )


def position_limit(model: Any) -> dict[str, int | None]:
    """The most positions that a model knows, by the name that its user knows it by."""
    if not isinstance(model, LanguageModel):
        return _position_limit_of_library(model)
    if model.make_cache is None:
        return {}  # the window moves on
    return {"max_length": model.max_length}


def _position_limit_of_library(model: Any) -> dict[str, int | None]:
    config = model.config.get_text_config(decoder=True)
    limits: dict[str, int | None] = {
        name: getattr(config, name, None) for name in _POSITION_FIELDS
    }
    known = (name for name in limits if limits[name] is not None)
    name = next(known, _POSITION_FIELDS[-1])
    if name == "max_position_embeddings" and limits[name] is not None:
        scaled = transformers_rotary.scaled_length(
            model, config, layer_types_with_window(config)
        )
        if scaled is not None and scaled != limits[name]:
            return {f"{name}, scaled as rope_parameters says": scaled}
    return {name: limits[name]}


def table_changes(model: Any, length: int) -> bool:
    """Whether a rotary table of a model at so many positions is another one than at the
    first.
    """
    if isinstance(model, LanguageModel):
        return False
    change = transformers_rotary.change_length(model)
    return change is not None and length > change


def check_local_window(model: Any, columns: int) -> None:
    """PortError if a local layer (GPT-Neo's) would look back from the cache's end, and
    not from the token's position.

    Its module takes the length of the keys for the number of positions. If the window
    is as long as the cache, nothing is cut off and the position does not matter.
    """
    if "local" not in (getattr(model.config, "attention_layers", None) or ()):
        return
    window = model.config.window_size
    if columns > window:
        raise PortError(
            f"this model's local layers see {window} positions, counted back from the end of the cache, which has "
            f"{columns} columns",
            where=f"{type(model).__name__}, window_size",
            fix=f"keep the prompt, rounded up to a multiple of 32, and the new tokens within {window} together, or use "
            "transformers' own generate",
        )
