"""`tpuport.generate`: transformers' generate, with the loop on the device."""

import dataclasses
import logging
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import torch
from jax.sharding import Mesh
from transformers import GenerationConfig
from transformers.utils.generic import ModelOutput

from tpuport import checkpoint
from tpuport.checkpoint.device_layout import one_device_mesh
from tpuport.compilation import WrittenInLoop, cleared_if_spoiled, settings_key
from tpuport.errors import PortError
from tpuport.generation.assisted_decoder import divide_prompt, with_drafts
from tpuport.generation.call_checks import (
    check_guided,
    check_model,
    check_search,
    check_streamed_rows,
    check_streamer,
    is_encoder_decoder,
)
from tpuport.generation.continuing import NO_CACHE, read_continuation, take_cache
from tpuport.generation.decoder import Decoder
from tpuport.generation.decoder_choice import (
    check_generate,
    choose_decoder,
    decoder_class,
    replace_decoder,
    weights_changed,
)
from tpuport.generation.encoder_decoder import ENCODER_OUTPUTS
from tpuport.generation.generation_options import Options, check_padding, read_options
from tpuport.generation.guidance import read_guidance
from tpuport.generation.host_functions import collect_functions
from tpuport.generation.host_loop import HostLoop, SilentStreamer, collect_criteria
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.length_limits import (
    cache_length,
)
from tpuport.generation.model_errors import explained_for_generate
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
from tpuport.generation.own_decoder import OwnDecoder
from tpuport.generation.own_generate import has_own_generate, or_on_host
from tpuport.generation.processor_options import check_token_ids
from tpuport.generation.prompts import (
    check_only_left,
    check_prompt,
    check_seed,
    pad_list,
    pad_prompts,
    read_token_ids,
    without_padding,
)
from tpuport.generation.source_inputs import read_source
from tpuport.generation.whisper_processors import TimestampRules
from tpuport.trace_errors import CannotTrace

logger = logging.getLogger("tpuport")

_PROMPT_FIELDS: Final = {"input_ids", "attention_mask"}
# So many descriptions of one model that somebody makes one for each call.
_MANY_DESCRIPTIONS: Final = 3
_descriptions: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
    weakref.WeakKeyDictionary()
)
_decoders: weakref.WeakKeyDictionary[Any, tuple[Hashable, Any]] = (
    weakref.WeakKeyDictionary()
)


def decoder_for(model: Any) -> Decoder:
    """The compiled programs of a ported model or a `LanguageModel`, made on first use
    and kept as long as the model.

    There are new ones once the model has been ported again, to a mesh or not, and once
    anything in it has changed but the values of its weights.
    """
    # The key has whatever a trace depends on.
    module = model.model if isinstance(model, LanguageModel) else model
    key = settings_key(module)
    last_key, decoder = _decoders.get(model, (None, None))
    if key != last_key:
        # A model on no mesh is refused later, by the names of its weights on the host.
        mesh = checkpoint.model_mesh(module) or one_device_mesh()
        decoder = _make_decoder(model, mesh)
        _decoders[model] = key, decoder
    return decoder


def _make_decoder(model: Any, mesh: Mesh) -> Decoder:
    if not isinstance(model, LanguageModel):
        return choose_decoder(model, mesh)
    _warn_of_new_descriptions(model)
    decoder = OwnDecoder(model, mesh)
    with explained_for_generate(decoder):
        decoder.verify()
    return decoder


def _warn_of_new_descriptions(language_model: LanguageModel) -> None:
    """Programs belong to a LanguageModel, so one for each call would compile in each
    call.
    """
    if language_model in _decoders:
        return
    model = language_model.model
    _descriptions[model] = _descriptions.get(model, 0) + 1
    if _descriptions[model] == _MANY_DESCRIPTIONS:
        logger.warning(
            "generate has compiled a %s for %d LanguageModels. Make one, and use it in all calls.",
            type(model).__name__, _MANY_DESCRIPTIONS,
        )  # fmt: skip


def generate(
    model: Any,
    input_ids: Any = None,
    attention_mask: Any = None,
    generation_config: GenerationConfig | None = None,
    streamer: Any = None,
    seed: int = 0,
    *,
    stopping_criteria: Sequence[Any] | None = None,
    tokenizer: Any = None,
    logits_processor: Sequence[Any] | None = None,
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None,
    negative_prompt_ids: Any = None,
    negative_prompt_attention_mask: Any = None,
    assistant_model: Any = None,
    share_prefix: bool = False,
    kv_cache: str | None = None,
    **options: Any,
) -> torch.Tensor | list[torch.Tensor] | ModelOutput:
    """Generate token ids as transformers' `model.generate` does, prompt included.

    Of an encoder-decoder the prompt is what its decoder begins with; `input_ids` are
    the encoder's.

    The prompt runs in one compiled program, all tokens after it in another that stops
    when every row has ended. With a streamer, stop strings or stopping criteria the
    second runs in chunks. What the host decides between two chunks counts from the very
    token that it would have stopped at. On a mesh over several processes each of them
    calls this with the same arguments and gets the same tokens; criteria count as the
    first process evaluates them.

    Args:
        model: a ported transformers model (`tpuport.load` or `tpuport.port`), a causal
            language model or an encoder-decoder, or a `LanguageModel`.
        input_ids: [batch, length] integers, padded on the left; what a tokenizer or
            processor returns, a mapping with input_ids and attention_mask; or a list of
            prompts of any lengths, each a list or tensor of integers. An encoder that
            reads something else, such as audio features, gets it here or by its name,
            and may be padded on the right.
        attention_mask: [batch, length], 0 at padding. None infers it from the padding
            id, as transformers does.
        generation_config: transformers' object; a field that is also passed by name has
            the value passed by name.
        streamer: has put(token_ids) and end(), as transformers' streamers do.
        seed: random draws depend on it and on a row's own prompt, not on the rest of
            the batch.
        stopping_criteria: transformers' StoppingCriteria objects, called with
            (input_ids, None).
        tokenizer: needed for stop strings only.
        logits_processor: transformers' LogitsProcessor objects, called on the host in
            every step with (input_ids, scores), between transformers' own processors
            and what is for sampling alone.
        prefix_allowed_tokens_fn: as in transformers, called on the host in every step.
        negative_prompt_ids: [batch, length] integers for guidance_scale, without
            padding; None is the last token of each prompt.
        negative_prompt_attention_mask: as in transformers.
        assistant_model: a smaller ported model on the same mesh, which drafts tokens;
            the tokens are the same.
        share_prefix: compute once what all rows of the batch begin with, such as the
            instructions in front of each prompt, or the whole prompt of several beams;
            the tokens are the same.
        kv_cache: "int8" keeps keys and values in eight bits, with a scale for each
            position and head, in about half the bytes of bfloat16. What is rounded are
            the keys and values of every position before attention reads them, so that
            tokens do not depend on how a prompt is divided or drafted.
        options: fields of GenerationConfig, such as max_new_tokens, do_sample,
            temperature; `cache`, a DynamicCache or StaticCache that the text begins in;
            and of an encoder-decoder further inputs by the names in its
            signature, [batch, ...] each, such as input_features, decoder_input_ids or
            encoder_outputs.

    Returns:
        LongTensor [batch * num_return_sequences, length + generated] on the host; rows
        that end early are padded. For prompts of different lengths in a list, a list of
        LongTensors [length + generated] without any padding. With
        return_dict_in_generate, transformers' output class, with either as `sequences`
        and the cache that was given, if one was.

    Raises:
        PortError: before anything is compiled, for an option that is not supported, a
            prompt that does not fit, or a model that is not on the device, has no head,
            or cannot be traced.
    """
    check_model(model)
    if has_own_generate(model):
        return model.generate(
            input_ids, generation_config, logits_processor, stopping_criteria, prefix_allowed_tokens_fn,
            streamer=streamer, attention_mask=attention_mask, seed=seed, tokenizer=tokenizer,
            negative_prompt_ids=negative_prompt_ids, negative_prompt_attention_mask=negative_prompt_attention_mask,
            assistant_model=assistant_model, kv_cache=kv_cache, **options,
        )  # fmt: skip
    return run_generate(
        model, input_ids, attention_mask, generation_config, streamer, seed, stopping_criteria=stopping_criteria,
        tokenizer=tokenizer, logits_processor=logits_processor, prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
        negative_prompt_ids=negative_prompt_ids, negative_prompt_attention_mask=negative_prompt_attention_mask,
        assistant_model=assistant_model, share_prefix=share_prefix, kv_cache=kv_cache, options=options,
    )  # fmt: skip


@or_on_host
@cleared_if_spoiled()
def run_generate(
    model: Any,
    input_ids: Any,
    attention_mask: Any,
    generation_config: GenerationConfig | None,
    streamer: Any,
    seed: int,
    *,
    stopping_criteria: Sequence[Any] | None,
    tokenizer: Any,
    logits_processor: Sequence[Any] | None,
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None,
    options: dict[str, Any],
    negative_prompt_ids: Any = None,
    negative_prompt_attention_mask: Any = None,
    assistant_model: Any = None,
    share_prefix: bool = False,
    kv_cache: str | None = None,
    timestamps: TimestampRules | None = None,
) -> torch.Tensor | list[torch.Tensor] | ModelOutput:
    """As `generate`, whatever `generate` the model's class may have; `timestamps` are
    the rules of Whisper's.
    """
    check_kv_cache(kv_cache)
    check_streamer(streamer)
    names = _input_names(model)
    input_ids, attention_mask, options = _split_encoding(
        input_ids, attention_mask, options, names
    )
    cache, options = take_cache(model, options)
    inputs, options = split_inputs(names, options)
    check_passed_on(model, options)
    prompts_of_lengths = None
    if attention_mask is None:
        prompts_of_lengths = pad_list(input_ids, on_right=is_encoder_decoder(model))
    if prompts_of_lengths is not None:
        input_ids, attention_mask = prompts_of_lengths
    vocabulary = _vocabulary(model)
    contents: Sequence[bytes] = ()
    source_length = None
    continuation = NO_CACHE
    if is_encoder_decoder(model):
        source = read_source(
            model, input_ids, attention_mask, inputs, generation_config, options
        )
        tokens, mask, inputs, contents, source_length = source
        request = read_options(model, generation_config, options, tokens.shape[-1])
    else:
        token_ids = read_token_ids(input_ids)
        request = read_options(model, generation_config, options, token_ids.shape[-1])
        continuation = read_continuation(
            model, decoder_for, cache, request, has_inputs=bool(inputs), kv_cache=kv_cache,
            assistant_model=assistant_model is not None, share_prefix=share_prefix,
            prefill_chunk_size=request.prefill_chunk_size, prompt_lookup_num_tokens=request.prompt_lookup,
        )  # fmt: skip
        token_ids = continuation.add_past(token_ids, attention_mask)
        tokens, mask = check_prompt(
            token_ids, attention_mask, request.pad, request.eos, vocabulary
        )
        inputs = read_inputs(inputs, model)
        contents = modality_contents(inputs, len(tokens))
    if isinstance(model, LanguageModel):
        check_only_left(mask)
    request = dataclasses.replace(
        request,
        processors=dataclasses.replace(request.processors, timestamps=timestamps),
    )
    check_token_ids(request.processors, vocabulary)
    seed = check_seed(seed)
    criteria = collect_criteria(request, stopping_criteria, tokenizer)
    check_padding(
        request, len(tokens) * request.rows_per_prompt, vocabulary, bool(criteria)
    )
    check_search(request, streamer, assistant_model)
    check_streamed_rows(streamer, len(tokens) * request.rows_per_prompt)
    functions = collect_functions(
        request, logits_processor, prefix_allowed_tokens_fn, criteria, vocabulary
    )
    has_modalities = bool(inputs) and not is_encoder_decoder(model)
    # transformers knows neither prompts of other lengths nor models without padding.
    padding_is_context = prompts_of_lengths is None and not isinstance(
        model, LanguageModel
    )

    def run_prompt(decoder: Decoder) -> HostLoop:
        decoder = _with_drafts(
            decoder.with_kv_cache(kv_cache),
            assistant_model,
            request,
            inputs,
            tokens.shape[1],
        )
        # Whole prompts, with all their beams, fill up the batch.
        row_multiple = decoder.row_multiple * request.num_beams
        prompts = pad_prompts(
            tokens, mask, request, seed, row_multiple, uses_buckets=decoder.uses_buckets,
            inputs={} if has_modalities else inputs, contents=contents, source_length=source_length,
            padding_is_context=padding_is_context, takes_padding=decoder.takes_padding,
        )  # fmt: skip
        if has_modalities:
            check_reads(decoder, inputs, request.guidance_scale)
            prompts = add_modalities(
                model, prompts, len(tokens), request.rows_per_prompt, inputs
            )
        guidance = read_guidance(
            request, prompts, negative_prompt_ids, negative_prompt_attention_mask, vocabulary,
            uses_buckets=decoder.uses_buckets,
        )  # fmt: skip
        check_guided(model, guidance, prompts, request)
        prompts, parts = divide_prompt(
            decoder, prompts, request, shares_prefix=share_prefix
        )
        columns = cache_length(model, prompts, request) + decoder.spare_columns
        return HostLoop(decoder, prompts, request, columns, functions, guidance, parts)

    run = continuation.in_place_of(run_prompt, tokens, mask, request, seed, functions)
    needs_cache = has_modalities or continuation.is_needed
    loop = _begin(model, run, needs_cache=needs_cache)
    if streamer is None and (not criteria or request.num_beams > 1):
        generated = loop.run()
    else:
        generated = loop.run_in_chunks(criteria, streamer or SilentStreamer())
    continuation.write(loop, generated)
    if prompts_of_lengths is not None:
        generated = without_padding(generated, mask, request)
    if not request.return_dict:
        return generated
    return continuation.added_to(
        loop.as_output(generated, has_encoder=is_encoder_decoder(model))
    )


LanguageModel.generate = generate


def _begin(
    model: Any, run_prompt: Callable[[Decoder], HostLoop], *, needs_cache: bool
) -> HostLoop:
    """Run the prompt, in its own program; without a cache if the model cannot be traced
    with one.

    Args:
        needs_cache: the prompt has images or the like, or is behind a caller's cache,
            which only decoders with a cache take.
    """
    decoder = decoder_for(model)
    try:
        return run_prompt(decoder)
    except CannotTrace as error:
        if needs_cache:
            raise
        other = replace_decoder(model, decoder, error)
    except WrittenInLoop as error:
        with weights_changed(model, error):
            return run_prompt(decoder_for(model))
    _decoders[model] = _decoders[model][0], other
    return run_prompt(other)


def _with_drafts(
    decoder: Decoder,
    assistant_model: Any,
    options: Options,
    inputs: Mapping[str, Any],
    length: int,
) -> Decoder:
    """The decoder that drafts with the assistant or with the text itself, if either is
    asked for, after a prompt of so many columns.
    """
    if assistant_model is None:
        if options.prompt_lookup is None:
            return decoder
        return with_drafts(decoder, None, None, options, length)
    check_model(assistant_model)
    if (
        isinstance(assistant_model, LanguageModel)
        or checkpoint.model_mesh(assistant_model) is None
    ):
        raise PortError(
            "the assistant is not a ported model of transformers",
            where=f"assistant_model={type(assistant_model).__name__}",
            fix="assistant_model=tpuport.port(assistant, mesh=...), with the model's own mesh",
        )
    if options.processors.timestamps is not None:
        raise PortError(
            "with an assistant, Whisper's rules of timestamps count from other tokens in transformers, and give others",
            where="assistant_model, return_timestamps=True",
            fix="leave out one of the two",
        )
    if ENCODER_OUTPUTS in inputs:
        raise PortError(
            "the assistant has an encoder of its own, which needs the text or the recording",
            where=ENCODER_OUTPUTS,
            fix="give what the encoder reads, or leave assistant_model out",
        )
    return with_drafts(
        decoder,
        decoder_for(assistant_model),
        assistant_model.generation_config,
        options,
        length,
    )


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


def _input_names(model: Any) -> frozenset[str]:
    """What a model takes beside tokens; PortError for one that generates in another
    way.
    """
    if isinstance(model, LanguageModel):
        return frozenset()
    check_generate(model)
    return decoder_class(model).input_names(model)


def _split_encoding(
    input_ids: Any, attention_mask: Any, options: dict[str, Any], names: frozenset[str]
) -> tuple[Any, Any, dict[str, Any]]:
    """input_ids, attention_mask and the rest by name, if a tokenizer's or processor's
    result was passed for the ids.
    """
    if not isinstance(input_ids, Mapping):
        return input_ids, attention_mask, options
    encoding = dict(input_ids)
    # Pixels, for example, would be dropped in silence.
    if (
        "input_ids" not in encoding and not names
    ) or encoding.keys() - _PROMPT_FIELDS - names:
        raise PortError(
            f"generate() takes {', '.join(sorted(_PROMPT_FIELDS | names))} of this model",
            where=f"input_ids is a {type(input_ids).__name__} with {', '.join(map(str, encoding))}",
            fix="pass those by name: generate(model, inputs['input_ids'], inputs['attention_mask'])",
        )
    ids, mask = encoding.pop("input_ids", None), encoding.pop("attention_mask", None)
    if attention_mask is None:
        attention_mask = mask
    return ids, attention_mask, encoding | options
