"""What a call of `generate` must fulfil, checked before anything is compiled."""

from typing import Any

import torch

from tpuport.errors import PortError
from tpuport.generation.generation_options import Options
from tpuport.generation.guidance import Guidance
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.length_limits import (
    check_local_window,
    position_limit,
    table_changes,
)
from tpuport.generation.prompts import Prompts, bucket_length


def check_model(model: Any) -> None:
    """PortError unless the model is a decoder of transformers with a head that gives
    logits.
    """
    if isinstance(model, LanguageModel):
        return
    config: Any = getattr(model, "config", None)
    name = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        raise PortError(
            f"generate() takes a transformers model or a LanguageModel, and this is a {name}",
            where="the first argument of generate",
            fix="give the ported model itself, generate(model, ...): generate compiles its programs and keeps them",
        )
    # Models of one's own often have a config as well.
    if not hasattr(config, "get_text_config"):
        raise PortError(
            f"generate() takes a transformers model or a LanguageModel, and this is a {name}",
            where="the first argument of generate",
            fix="describe it: generate(tpuport.LanguageModel(model, vocab_size=..., max_length=...), ...)",
        )
    # A head is missing if the checkpoint was loaded as AutoModel, the most common
    # mistake.
    if not getattr(model, "can_generate", lambda: True)():
        fix = "load it as AutoModelForCausalLM"
        if getattr(config, "architectures", None):
            fix += f" (the checkpoint was saved from {', '.join(config.architectures)})"
        raise PortError(
            "this model has no head that gives logits to choose a token from",
            where=name,
            fix=fix,
        )


def check_search(options: Options, streamer: Any, assistant_model: Any) -> None:
    """PortError for what a beam search cannot do: its sequences change until it
    ends.
    """
    if options.num_beams > 1 and (
        assistant_model is not None or options.prompt_lookup is not None
    ):
        raise PortError(
            "a beam search takes no drafts of the next tokens, in transformers neither",
            where=f"num_beams={options.num_beams}",
            fix="leave out assistant_model and prompt_lookup_num_tokens, or pass num_beams=1",
        )
    if options.num_beams > 1 and streamer is not None:
        raise PortError(
            "a beam search knows its sequences only at the end, and cannot be streamed",
            where=f"streamer={type(streamer).__name__}",
            fix="leave the streamer out, or pass num_beams=1",
        )


def check_streamer(streamer: Any) -> None:
    """PortError for what transformers would not take as a streamer."""
    if streamer is not None and not (
        hasattr(streamer, "put") and hasattr(streamer, "end")
    ):
        raise PortError(
            "a streamer has put(token_ids) and end()",
            where=f"streamer={type(streamer).__name__}",
            fix="give transformers.TextStreamer(tokenizer), say",
        )


def check_streamed_rows(streamer: Any, rows: int) -> None:
    """PortError for several rows and one of transformers' own text streamers, which
    print one text.
    """
    if hasattr(streamer, "skip_prompt") and rows > 1:
        raise PortError(
            "this streamer takes one row",
            where=type(streamer).__name__,
            fix="stream rows one by one",
        )


def check_guided(
    model: Any, guidance: Guidance | None, prompts: Prompts, options: Options
) -> None:
    """PortError for a model that cannot decode a second sequence beside the prompt's,
    or not such a long one.
    """
    if guidance is None:
        return
    if model.config.is_encoder_decoder:
        raise PortError(
            "guidance_scale is for decoder-only models: transformers would give the decoder's tokens to the encoder",
            where=type(model).__name__,
            fix="pass guidance_scale=1",
        )
    length = int(guidance.mask[0].sum())
    for name, limit in position_limit(model).items():
        if limit is not None and length + options.max_new > limit:
            raise PortError(
                f"a negative prompt of {length} tokens and {options.max_new} new ones do not fit {name} = {limit}",
                where="negative_prompt_ids",
                fix="shorten it, or ask for fewer new tokens",
            )
    if isinstance(model, LanguageModel):
        return
    if table_changes(model, max(length, prompts.length) + options.max_new - 1):
        raise PortError(
            "guidance_scale is not supported for a text so long that the model's rotary table is another one",
            where="rope_parameters",
            fix="pass guidance_scale=1, or ask for fewer new tokens",
        )
    check_local_window(model, bucket_length(guidance.tokens.shape[1] + options.max_new))
