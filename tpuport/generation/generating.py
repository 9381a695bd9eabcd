"""`tpuport.generate`: transformers' generate, with the loop on the device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils.generic import ModelOutput

from tpuport.generation.call_checks import check_model
from tpuport.generation.class_generate import run_class_generate
from tpuport.generation.class_loops import has_class_generate
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.loop_choice import run_loop
from tpuport.generation.request import Request


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
    # All arguments, by name.
    request = Request(**locals())
    check_model(model)
    if has_class_generate(model):
        return run_class_generate(model, request.as_transformers())
    return run_loop(request)


LanguageModel.generate = generate
