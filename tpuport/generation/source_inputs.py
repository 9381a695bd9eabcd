"""The inputs of an encoder-decoder in a call of `generate`: what the encoder reads, and
what the decoder begins with.

The rules are those of transformers' `generate`. Token ids of the encoder are padded to
a bucket on the right, where the model's own mask hides them, so that another length
needs no other program.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from transformers import GenerationConfig

from tpuport import compat
from tpuport.base.plurals import count_noun
from tpuport.errors import PortError
from tpuport.generation.encoder_decoder import ENCODER_OUTPUTS
from tpuport.generation.generation_options import merge_configs
from tpuport.generation.model_inputs import (
    arrays_of,
    check_rows,
    read_array,
    read_inputs,
    vocabulary_size,
)
from tpuport.generation.prompts import Prompt, bucket_length, read_token_ids
from tpuport.generation.request import Request
from tpuport.internals.transformers_internals import infers_encoder_masks
from tpuport.libraries import model_facts

_DECODER_NAMES: Final = ("decoder_input_ids", "decoder_attention_mask")


def main_input(model: Any) -> str:
    """The name of what the encoder reads, as transformers' `generate` finds it."""
    encoder_name = getattr(getattr(model, "encoder", None), "main_input_name", None)
    return encoder_name or getattr(model, "main_input_name", "input_ids")


def read_source(request: Request, inputs: Mapping[str, Any]) -> Prompt:
    """Check the inputs of a call, and add what the model's config says about the
    decoder's first token.

    Args:
        request: whose options are fields of GenerationConfig alone.
        inputs: further inputs by name, None among them left out.

    Raises:
        PortError: no input, ids outside the vocabulary, more columns than the encoder
            has positions, inputs with other numbers of rows, or no token to begin with.
    """
    model, main = request.model, request.input_ids
    name = main_input(model)
    inputs = dict(inputs)
    if main is not None:
        # As in transformers, ids beside another main input are the decoder's.
        inputs["decoder_input_ids" if name in inputs else name] = main
    takes_mask = model.config.model_type not in model_facts.WITHOUT_MASK
    if request.attention_mask is not None and takes_mask:
        inputs["attention_mask"] = request.attention_mask
    decoder_inputs = {key: inputs.pop(key) for key in _DECODER_NAMES if key in inputs}
    if ENCODER_OUTPUTS in inputs:
        inputs[ENCODER_OUTPUTS] = _last_hidden_state(inputs[ENCODER_OUTPUTS])
        name = ENCODER_OUTPUTS
    if "inputs_embeds" in inputs and name not in inputs:
        name = "inputs_embeds"
    if name not in inputs:
        raise PortError(
            f"{type(model).__name__} reads {name}, and got none",
            where=", ".join(inputs) or "generate without inputs",
            fix=f"generate(model, {name}=...)",
        )
    if name == "input_ids":
        inputs[name] = read_token_ids(inputs[name])
    arrays = read_inputs(inputs, model, model.get_encoder())
    rows = arrays[name].shape[0]
    check_rows(arrays_of(arrays), rows, name)
    contents = _contents(arrays, name)
    length = 0
    if name == "input_ids":
        length = arrays[name].shape[1]
        if infers_encoder_masks() and "attention_mask" not in arrays:
            _check_unmasked(model, arrays[name])
        arrays = _pad_to_bucket(model, arrays)
    tokens, mask = _decoder_prompt(request, decoder_inputs, rows)
    return Prompt(tokens, mask, arrays, contents, length)


def _check_unmasked(model: Any, ids: np.ndarray) -> None:
    """PortError for padding without a mask, which those releases of transformers make
    themselves.
    """
    pad = getattr(model.config, "pad_token_id", None)
    if pad is not None and (ids == pad).any():
        raise PortError(
            "token ids with padding need a mask: with this release of transformers, generate makes one in torch",
            where=f"input_ids, pad_token_id {pad}",
            fix="generate(model, ids, attention_mask=ids != pad_token_id); all ones if padding is text",
        )


def _last_hidden_state(outputs: Any) -> Any:
    """Of a ModelOutput, a tuple, or the tensor itself."""
    if isinstance(outputs, Mapping):
        return outputs["last_hidden_state"]
    if isinstance(outputs, list | tuple):
        return outputs[0]
    return outputs


def _contents(arrays: dict[str, np.ndarray], name: str) -> list[bytes]:
    """The bytes of each row's main input, without masked columns of token ids."""
    main, mask = arrays[name], arrays.get("attention_mask")
    if name != "input_ids" or mask is None or mask.shape != main.shape:
        return [row.tobytes() for row in main]
    return [
        row[is_token.astype(bool)].tobytes()
        for row, is_token in zip(main, mask, strict=True)
    ]


def _pad_to_bucket(model: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Token ids and their mask with the columns of a bucket, if that changes
    nothing.
    """
    ids = arrays["input_ids"]
    vocabulary = vocabulary_size(model)
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise PortError(
            f"input_ids from {ids.min()} to {ids.max()} do not fit the vocabulary of {vocabulary}",
            fix=f"give token ids from 0 to {vocabulary - 1}: of the tokenizer that this model was trained with",
        )
    length = ids.shape[1]
    limit = _encoder_positions(model)
    if limit is not None and length > limit:
        raise PortError(
            f"{length} tokens do not fit the encoder's {limit} positions",
            where=f"input_ids {tuple(ids.shape)}",
            fix="truncate the text: tokenizer(texts, truncation=True, ...)",
        )
    mask = arrays.get("attention_mask")
    pad = getattr(model.config, "pad_token_id", None)
    columns = min(bucket_length(length), limit or bucket_length(length))
    can_be_padded = model.config.model_type in model_facts.MASKED_ENCODERS and (
        mask is None or mask.shape == ids.shape
    )
    if not can_be_padded or pad is None:
        return arrays
    if mask is None:
        # Without a mask every column counts, padding too.
        mask = np.ones(ids.shape, np.int32)
    padding = ((0, 0), (0, columns - length))
    return arrays | {
        # Some count positions from ids that are not padding.
        "input_ids": np.pad(ids, padding, constant_values=pad),
        "attention_mask": np.pad(mask, padding),
    }


def _encoder_positions(model: Any) -> int | None:
    """The most columns that the encoder has positions for; None without such a
    limit.
    """
    names = ("max_encoder_position_embeddings", "max_position_embeddings")
    limits = (getattr(model.config, name, None) for name in names)
    return next((limit for limit in limits if limit is not None), None)


def _decoder_prompt(
    request: Request, inputs: dict[str, Any], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """The decoder's first tokens and their mask, [B, P], as transformers' `generate`
    makes them.
    """
    model = request.model
    config = merge_configs(model, request.generation_config, request.options)
    start = _start_tokens(model, rows, config)
    if "decoder_input_ids" not in inputs:
        return start, np.ones(start.shape, bool)
    tokens = np.asarray(
        read_token_ids(inputs["decoder_input_ids"]).cpu().numpy(), np.int32
    )
    mask = np.ones(tokens.shape, bool)
    if "decoder_attention_mask" in inputs:
        mask = read_array(
            inputs["decoder_attention_mask"], "decoder_attention_mask"
        ).astype(bool)
    check_rows(
        {"decoder_input_ids": tokens, "decoder_attention_mask": mask},
        rows,
        main_input(model),
    )
    if mask.shape != tokens.shape:
        raise PortError(
            f"decoder_attention_mask is {mask.shape}, decoder_input_ids are {tokens.shape}",
            where="decoder_attention_mask",
        )
    if (
        model.config.model_type not in model_facts.COMPLETE_PROMPTS
        and (tokens[:, 0] != start[:, 0]).all()
    ):
        tokens = np.concatenate([start, tokens], axis=1)
        mask = np.pad(mask, ((0, 0), (1, 0)), constant_values=True)
    return tokens, mask


def _start_tokens(model: Any, rows: int, config: GenerationConfig) -> np.ndarray:
    """decoder_start_token_id, or else bos_token_id, for each row: int32 [B, 1]."""
    start = config.decoder_start_token_id
    if start is None:
        start = config.bos_token_id
    if start is None:
        raise PortError(
            f"{type(model).__name__} has no token to begin with",
            where="decoder_start_token_id",
            fix="generate(..., decoder_start_token_id=...)",
        )
    ids = np.asarray(compat.to_numpy(torch.as_tensor(start)), np.int32).reshape(-1, 1)
    if len(ids) not in (1, rows):
        raise PortError(
            f"{count_noun(len(ids), 'token')} to begin with, and {count_noun(rows, 'row')}",
            where=f"decoder_start_token_id={start!r:.60}",
        )
    return np.broadcast_to(ids, (rows, 1)).copy()
