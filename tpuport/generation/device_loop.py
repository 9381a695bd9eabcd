"""A request on the device: read and checked, the decoder of the model, its loop."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from transformers import StoppingCriteriaList
from transformers.utils.generic import ModelOutput

from tpuport.compilation import cleared_if_spoiled
from tpuport.errors import PortError
from tpuport.generation.assisted_decoder import divide_prompt, with_drafts
from tpuport.generation.cache_arguments import set_cache
from tpuport.generation.call_checks import (
    check_guided,
    check_search,
    check_streamed_rows,
    check_streamer,
)
from tpuport.generation.callers_cache import CallersCache
from tpuport.generation.continuing import begin_behind, read_cache, take_cache
from tpuport.generation.decoder import Decoder
from tpuport.generation.decoder_choice import check_generate, decoder_class, try_decoder
from tpuport.generation.decoding_loop import (
    DecodingLoop,
    SilentStreamer,
    collect_criteria,
)
from tpuport.generation.generation_options import Options, check_padding, read_options
from tpuport.generation.guidance import read_guidance
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.length_limits import cache_length
from tpuport.generation.model_inputs import (
    check_passed_on,
    read_inputs,
    split_inputs,
    vocabulary_size,
)
from tpuport.generation.multimodal_inputs import (
    add_modalities,
    check_reads,
    modality_contents,
)
from tpuport.generation.option_values import check_kv_cache
from tpuport.generation.processor_options import check_token_ids
from tpuport.generation.prompts import (
    Prompt,
    check_only_left,
    check_prompt,
    check_seed,
    pad_list,
    pad_prompts,
    read_token_ids,
    without_padding,
)
from tpuport.generation.request import Request
from tpuport.generation.source_inputs import read_source
from tpuport.generation.step_functions import StepFunction, collect_functions

_PROMPT_FIELDS: Final = {"input_ids", "attention_mask"}


@cleared_if_spoiled()
def run_on_device(request: Request) -> torch.Tensor | list[torch.Tensor] | ModelOutput:
    """Generate with the loop on the device.

    Raises:
        NoLoop, CannotTrace: no program can repeat the model's steps.
        PortError: the request itself cannot be served.
    """
    task = _read(request)
    begin = functools.partial(_begin_loop, task)
    needs_cache = task.has_modalities or task.caller is not None
    loop = try_decoder(request.model, begin, needs_cache=needs_cache)
    streamer, criteria = request.streamer, task.criteria
    if streamer is None and (not criteria or task.options.num_beams > 1):
        generated = loop.run()
    else:
        generated = loop.run_in_chunks(criteria, streamer or SilentStreamer())
    if task.caller is not None:
        loop.write_cache(task.caller, generated)
    if task.is_ragged:
        generated = without_padding(generated, task.prompt.mask, task.options)
    if not task.options.return_dict:
        return generated
    output = loop.as_output(
        generated, has_encoder=request.model.config.is_encoder_decoder
    )
    if task.caller is not None:
        set_cache(output, task.caller.cache)
    return output


class _Task(NamedTuple):
    """A request that has been read and checked, but for what depends on the decoder.

    Attributes:
        prompt: what the model begins with; caller: the cache that it goes on from.
        is_ragged: whether prompts of different lengths were given, as a list.
        has_modalities: whether there are images or the like beside tokens.
        functions: of the host in each step, by stage.
    """

    request: Request
    options: Options
    prompt: Prompt
    caller: CallersCache | None
    is_ragged: bool
    has_modalities: bool
    vocabulary: int
    seed: int
    criteria: StoppingCriteriaList
    functions: dict[str, StepFunction]


def _read(request: Request) -> _Task:
    """Check everything that a request says about its model, before anything is
    compiled.
    """
    check_kv_cache(request.kv_cache)
    check_streamer(request.streamer)
    model = request.model
    check_generate(model)
    names = decoder_class(model).input_names(model)
    request = _split_encoding(request, names)
    cache, named = take_cache(model, request.options)
    inputs, named = split_inputs(names, named)
    check_passed_on(model, named)
    request = dataclasses.replace(request, options=named)
    has_encoder = model.config.is_encoder_decoder
    padded = None
    if request.attention_mask is None:
        padded = pad_list(request.input_ids, on_right=has_encoder)
    if padded is not None:
        request = dataclasses.replace(
            request, input_ids=padded[0], attention_mask=padded[1]
        )
    vocabulary = _vocabulary(model)
    caller = None
    if has_encoder:
        prompt = read_source(request, inputs)
        options = _read_options(request, prompt.tokens.shape[-1])
    else:
        prompt, options, caller = _read_text(request, inputs, cache, vocabulary)
    if isinstance(model, LanguageModel):
        check_only_left(prompt.mask)
    check_token_ids(options.processors, vocabulary)
    seed = check_seed(request.seed)
    criteria = collect_criteria(options, request.stopping_criteria, request.tokenizer)
    rows = len(prompt.tokens) * options.rows_per_prompt
    check_padding(options, rows, vocabulary, bool(criteria))
    check_search(options, request.streamer, request.assistant_model)
    check_streamed_rows(request.streamer, rows)
    functions = collect_functions(
        options, request.logits_processor, request.prefix_allowed_tokens_fn, criteria, vocabulary
    )  # fmt: skip
    return _Task(
        request, options, prompt, caller, is_ragged=padded is not None,
        has_modalities=bool(inputs) and not has_encoder, vocabulary=vocabulary, seed=seed, criteria=criteria,
        functions=functions,
    )  # fmt: skip


def _read_text(
    request: Request, inputs: dict[str, Any], cache: Any, vocabulary: int
) -> tuple[Prompt, Options, CallersCache | None]:
    """The prompt of a decoder-only model, the options, and the cache that comes before
    the prompt.
    """
    model, mask = request.model, request.attention_mask
    token_ids = read_token_ids(request.input_ids)
    options = _read_options(request, token_ids.shape[-1])
    caller = read_cache(request, cache, options, bool(inputs))
    if caller is not None:
        token_ids = caller.add_past(token_ids, mask)
    tokens, mask = check_prompt(token_ids, mask, options.pad, options.eos, vocabulary)
    inputs = read_inputs(inputs, model)
    contents = modality_contents(inputs, len(tokens))
    return Prompt(tokens, mask, inputs, contents), options, caller


def _begin_loop(task: _Task, decoder: Decoder) -> DecodingLoop:
    """Run the prompt with a decoder, in its own program."""
    request, options, prompt = task.request, task.options, task.prompt
    model = request.model
    if task.caller is not None:
        return begin_behind(
            task.caller, decoder, prompt, options, task.seed, task.functions
        )
    decoder = with_drafts(
        decoder.with_kv_cache(request.kv_cache), request, options, prompt
    )
    # transformers knows neither prompts of other lengths nor models without padding.
    padding_is_context = not (task.is_ragged or isinstance(model, LanguageModel))
    prompts = pad_prompts(
        prompt._replace(inputs={}) if task.has_modalities else prompt, options, task.seed,
        # Whole prompts, with all their beams, fill up the batch.
        decoder.row_multiple * options.num_beams, uses_buckets=decoder.uses_buckets,
        padding_is_context=padding_is_context, takes_padding=decoder.takes_padding,
    )  # fmt: skip
    if task.has_modalities:
        check_reads(decoder, prompt.inputs, options.guidance_scale)
        prompts = add_modalities(
            model, prompts, len(prompt.tokens), options.rows_per_prompt, prompt.inputs
        )
    guidance = read_guidance(
        request, options, prompts, task.vocabulary, uses_buckets=decoder.uses_buckets
    )
    check_guided(model, guidance, prompts, options)
    prompts, parts = divide_prompt(
        decoder, prompts, options, shares_prefix=request.share_prefix
    )
    columns = cache_length(model, prompts, options) + decoder.spare_columns
    return DecodingLoop(
        decoder, prompts, options, columns, task.functions, guidance, parts
    )


def _read_options(request: Request, prompt_length: int) -> Options:
    options = read_options(
        request.model, request.generation_config, request.options, prompt_length
    )
    if request.timestamps is None:
        return options
    processors = {**options.processors, "timestamps": request.timestamps}
    return dataclasses.replace(options, processors=processors)


def _vocabulary(model: Any) -> int:
    if isinstance(model, LanguageModel):
        return model.vocab_size
    # The embedding's, because the config of a resized model may still have the old one.
    if model.config.is_encoder_decoder:
        # Some have one vocabulary for the encoder and another for the decoder, or an
        # encoder without one.
        decoder = model.get_decoder()
        if hasattr(decoder, "embed_tokens"):
            return decoder.embed_tokens.weight.shape[0]
    return vocabulary_size(model)


def _split_encoding(request: Request, names: frozenset[str]) -> Request:
    """The request with input_ids, attention_mask and the rest by name, if a tokenizer's
    or processor's result was passed for the ids.
    """
    if not isinstance(request.input_ids, Mapping):
        return request
    encoding = dict(request.input_ids)
    # Pixels, for example, would be dropped in silence.
    if (
        "input_ids" not in encoding and not names
    ) or encoding.keys() - _PROMPT_FIELDS - names:
        raise PortError(
            f"generate() takes {', '.join(sorted(_PROMPT_FIELDS | names))} of this model",
            where=f"input_ids is a {type(request.input_ids).__name__} with {', '.join(map(str, encoding))}",
            fix="pass those by name: generate(model, inputs['input_ids'], inputs['attention_mask'])",
        )
    ids, mask = encoding.pop("input_ids", None), encoding.pop("attention_mask", None)
    if request.attention_mask is not None:
        mask = request.attention_mask
    return dataclasses.replace(
        request,
        input_ids=ids,
        attention_mask=mask,
        options={**encoding, **request.options},
    )
