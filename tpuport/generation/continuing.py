"""A call of `generate` that goes on from a cache of the caller's."""

import functools
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tpuport.base.mappings import without
from tpuport.errors import PortError
from tpuport.generation.assisted_decoder import takes_several_tokens
from tpuport.generation.cache_arguments import (
    CACHE_NAMES,
    KEY_VALUE_NAMES,
    set_cache,
)
from tpuport.generation.callers_cache import CallersCache
from tpuport.generation.decoder_choice import decoder_for
from tpuport.generation.decoding_loop import DecodingLoop
from tpuport.generation.generation_options import Options
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.length_limits import check_length
from tpuport.generation.loop_state import State
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.prompts import Prompts, bucket_length, pad_prompts
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


class Continuation:
    """What a caller's cache means for one call of `generate`.

    Attributes:
        caller: the cache, None if there is none.
    """

    def __init__(self, caller: CallersCache | None) -> None:
        self.caller = caller
        self._unknown = 0

    @property
    def is_needed(self) -> bool:
        """Whether the call cannot do without a cache."""
        return self.caller is not None

    def add_past(self, tokens: torch.Tensor, mask: Any) -> torch.Tensor:
        """The whole text, with some tokens in place of unknown ones."""
        if self.caller is None:
            return tokens
        tokens, self._unknown = self.caller.add_past(tokens, mask)
        return tokens

    def begin_loop(
        self,
        decoder: Any,
        tokens: np.ndarray,
        mask: np.ndarray,
        options: Options,
        seed: int,
        functions: dict[str, StepFunction],
    ) -> DecodingLoop:
        """Run the tokens behind the cache, which is needed."""
        assert self.caller is not None
        decoder = resuming_decoder(decoder)
        prompts = pad_prompts(
            tokens, mask, options, seed, decoder.row_multiple * options.num_beams, uses_buckets=False,
            takes_padding=decoder.takes_padding,
        )  # fmt: skip
        # Its own code drops the cache then.
        if restart_column(decoder.model, prompts, options) is not None:
            raise _no_loop(decoder.model)
        resumed = ResumedText(decoder, self.caller, prompts, options)
        prompts = prompts._replace(length=prompts.length - self._unknown)
        begin = functools.partial(resumed.run, decoder, prompts)
        return DecodingLoop(decoder, prompts, options, 0, functions, begin=begin)

    def write(self, loop: DecodingLoop, sequences: torch.Tensor) -> None:
        """Let the caller's cache have what belongs to the text now."""
        if self.caller is not None:
            loop.write_cache(self.caller, sequences)

    def added_to(self, output: Any) -> Any:
        """An output of transformers with the cache."""
        if self.caller is not None:
            set_cache(output, self.caller.cache)
        return output


def read_continuation(
    request: Request, cache: Any, options: Options, has_inputs: bool
) -> Continuation:
    """What a cache that was given to `generate`, None if none was, means for the call.

    Args:
        has_inputs: beside tokens.

    Raises:
        NoLoop: transformers' own loop serves the model, the cache or the options.
        PortError: the cache cannot be used at all.
    """
    if cache is None:
        return Continuation(None)
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
    return Continuation(caller)


def resuming_decoder(decoder: Any) -> Any:
    """The decoder that keeps all columns, from which a cache of any form can be cut."""
    if not any(layer.is_sliding for layer in decoder.make_cache(1).layers):
        return decoder
    if "all columns" not in decoder.variants:
        variant = type(decoder)(decoder.model, decoder.mesh)
        variant.keeps_all_columns = True
        decoder.variants["all columns"] = variant
    return decoder.variants["all columns"]


class ResumedText:
    """The prompt of one call, behind what is in the caller's cache.

    Attributes:
        caller: the cache.
    """

    def __init__(
        self, decoder: Any, caller: CallersCache, prompts: Prompts, options: Options
    ) -> None:
        """Find the shapes of the program.

        Raises:
            PortError: the cache has other rows, or no room, or the text gets longer
                than the model knows.
        """
        self.caller = caller
        rows, columns = prompts.tokens.shape
        self._chunk = bucket_length(columns - caller.columns)
        if caller.rows not in (None, prompts.real_rows):
            raise PortError(
                f"this cache has {caller.rows} rows, and the batch decodes {prompts.real_rows}",
                where="cache",
                fix="give a cache of these rows; before beams or samples, cache.batch_repeat_interleave(number)",
            )
        most = caller.most_columns
        # The last token is not in the cache.
        last = columns + options.max_new - 1
        if most is not None and last > most:
            raise PortError(
                f"a text of {columns} tokens and {options.max_new} new ones do not fit a cache of {most} columns",
                where="cache",
                fix="give a longer cache, or ask for fewer new tokens",
            )
        check_length(decoder.model, columns, options)
        self._states = caller.states(rows, decoder.mesh)
        needed = max(caller.columns + self._chunk, columns + options.max_new)
        given = [
            array.shape[-2]
            for states in self._states or ()
            for array in states.values()
        ]
        self._slots = max([bucket_length(needed), most or 0, *given])
        room = ((0, 0), (0, self._slots - columns))
        self._tokens = np.pad(prompts.tokens, room)
        # Columns to come are open: the causal mask hides them until they are written.
        self._present = np.pad(prompts.mask, room, constant_values=True)

    def run(
        self, decoder: Any, prompts: Prompts, arrays: Any, settings: SamplingSettings
    ) -> State:
        """Run the tokens behind the cache, and choose the next one."""
        states, self._states = self._states, None
        with warnings.catch_warnings():
            # Of a cache that grows, no array fits into the one before.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            return decoder.resume(
                arrays, self._tokens, self._present, prompts.keys, np.int32(prompts.tokens.shape[1]),
                np.int32(prompts.real_rows), settings, states, np.int32(self.caller.columns),
                forms=self.caller.forms, chunk=self._chunk,
            )  # fmt: skip
