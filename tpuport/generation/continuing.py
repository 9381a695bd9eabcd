"""A call of `generate` that goes on from a cache of the caller's."""

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpuport.base.mappings import without
from tpuport.errors import PortError
from tpuport.generation.assisted_decoder import takes_several_tokens
from tpuport.generation.cache_arguments import (
    CACHE_NAMES,
    KEY_VALUE_NAMES,
)
from tpuport.generation.callers_cache import CallersCache
from tpuport.generation.decoder_choice import decoder_for
from tpuport.generation.decoding_loop import DecodingLoop
from tpuport.generation.generation_options import Options
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.length_limits import check_length
from tpuport.generation.loop_state import State
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.prompts import Prompt, Prompts, bucket_length, pad_prompts
from tpuport.generation.request import Request
from tpuport.generation.restarted_texts import restart_column
from tpuport.generation.sampling import SamplingSettings
from tpuport.generation.step_functions import StepFunction

logger = logging.getLogger("tpuport")


def take_cache(model: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The cache among the arguments of `generate`, None if there is none, and the
    others.

    Raises:
        NoLoop: the model has an encoder, whose output would be in the cache too.
        PortError: there are two caches, or the model makes its own.
    """
    given = {name: options[name] for name in options if name in CACHE_NAMES}
    caches = [cache for cache in given.values() if cache is not None]
    where = ", ".join(given)
    if len(caches) > 1:
        raise PortError("generate takes one cache", where=where)
    if caches and isinstance(model, LanguageModel):
        raise PortError(
            "a LanguageModel makes its caches itself",
            where=where,
            fix="leave it out, and give the whole text",
        )
    if caches and model.config.is_encoder_decoder:
        raise _no_loop(model)
    if caches and KEY_VALUE_NAMES[0] not in given:
        # As transformers' generate does.
        warnings.warn(
            f"generate: {where} is called {KEY_VALUE_NAMES[0]} now",
            FutureWarning,
            stacklevel=2,
        )
    return next(iter(caches), None), without(options, given)


def _no_loop(model: Any) -> NoLoop:
    return NoLoop(
        f"{type(model).__name__} goes on from a cache by transformers' own code alone, or with these options",
        where="cache",
        fix="leave it out, and give the whole text",
    )


def read_cache(
    request: Request, cache: Any, options: Options, has_inputs: bool
) -> CallersCache | None:
    """The cache that was given to `generate`, checked; None if none was.

    Args:
        has_inputs: beside tokens.

    Raises:
        NoLoop: transformers' own loop serves the model, the cache or the options.
        PortError: the cache cannot be used at all.
    """
    if cache is None:
        return None
    decoder = decoder_for(request.model)
    is_guided = options.guidance_scale is not None
    if has_inputs or is_guided or not takes_several_tokens(decoder):
        raise _no_loop(request.model)
    caller = CallersCache(cache, decoder)
    if request.kv_cache is not None:
        raise PortError(
            "keys and values of a cache that is given are in the model's dtype",
            where=f"kv_cache={request.kv_cache!r}",
            fix="leave one of the two out",
        )
    otherwise = {
        "assistant_model": request.assistant_model is not None,
        "share_prefix": request.share_prefix,
        "prefill_chunk_size": options.prefill_chunk_size,
        "prompt_lookup_num_tokens": options.prompt_lookup,
    }
    if any(otherwise.values()):
        logger.warning(
            "%s: after a cache that is given, the prompt runs at once and the loop decodes token by token, which gives "
            "the same tokens", ", ".join(filter(otherwise.get, otherwise)),
        )  # fmt: skip
    return caller


def begin_behind(
    caller: CallersCache,
    decoder: Any,
    prompt: Prompt,
    options: Options,
    seed: int,
    functions: dict[str, StepFunction],
) -> DecodingLoop:
    """Run the tokens of a text that come behind what is in the caller's cache."""
    if any(layer.is_sliding for layer in decoder.make_cache(1).layers):
        # From such caches one of any form can be cut.
        decoder = decoder.variant(keeps_all_columns=True)
    prompts = pad_prompts(
        prompt, options, seed, decoder.row_multiple * options.num_beams, uses_buckets=False,
        takes_padding=decoder.takes_padding,
    )  # fmt: skip
    # Its own code drops the cache then.
    if restart_column(decoder.model, prompts, options) is not None:
        raise _no_loop(decoder.model)
    _check_room(caller, prompts, options)
    rows, columns = prompts.tokens.shape
    check_length(decoder.model, columns, options)
    chunk = bucket_length(columns - caller.columns)
    states = caller.states(rows, decoder.mesh)
    given = [array.shape[-2] for layer in states or () for array in layer.values()]
    needed = max(caller.columns + chunk, columns + options.max_new)
    slots = max([bucket_length(needed), caller.most_columns or 0, *given])
    room = ((0, 0), (0, slots - columns))

    def begin(arrays: Any, settings: SamplingSettings) -> State:
        with warnings.catch_warnings():
            # Of a cache that grows, no array fits into the one before.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            # Columns to come are open: the causal mask hides them until they are
            # written.
            return decoder.resume(
                arrays, np.pad(prompts.tokens, room), np.pad(prompts.mask, room, constant_values=True), prompts.keys,
                np.int32(columns), np.int32(prompts.real_rows), settings, states, np.int32(caller.columns),
                forms=caller.forms, chunk=chunk,
            )  # fmt: skip

    known = prompts._replace(length=prompts.length - caller.unknown)
    return DecodingLoop(decoder, known, options, 0, functions, begin=begin)


def _check_room(caller: CallersCache, prompts: Prompts, options: Options) -> None:
    """PortError for a cache of other rows, or without room for the text."""
    if caller.rows not in (None, prompts.real_rows):
        raise PortError(
            f"this cache has {caller.rows} rows, and the batch decodes {prompts.real_rows}",
            where="cache",
            fix="give a cache of these rows; before beams or samples, cache.batch_repeat_interleave(number)",
        )
    columns, most = prompts.tokens.shape[1], caller.most_columns
    # The last token is not in the cache.
    if most is not None and columns + options.max_new - 1 > most:
        raise PortError(
            f"a text of {columns} tokens and {options.max_new} new ones do not fit a cache of {most} columns",
            where="cache",
            fix="give a longer cache, or ask for fewer new tokens",
        )
