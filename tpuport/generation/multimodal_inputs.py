"""Images, videos and audio in a call of `generate`: what a processor returns, beside
token ids and their mask.

Integers and masks, such as the grid of each image's patches or the valid frames of a
recording, decide shapes: they stay on the host and are a part of the program's key, and
so are plain values, such as a switch of the image encoder. All else is an argument of
the prompt's program, so that other values compile nothing.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np
import torch

from tpuport import compat
from tpuport.base.mappings import without
from tpuport.errors import PortError
from tpuport.generation.forward_signature import forward_parameters
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.model_inputs import Setting, arrays_of
from tpuport.generation.prompts import Prompts
from tpuport.internals.transformers_internals import (
    POSITIONS_OF_IMAGES,
    counts_positions_itself,
    expand_inputs,
    prepare_positions,
)
from tpuport.objects.state import HostInput

POSITIONS: Final = "position_ids"
# Which images [rows, images] are more than padding. No argument of a model.
REAL_IMAGES: Final = "real_images"
# By the name of the argument, that of the next token from that of the last, [B, 1]:
# transformers repeats it, but the types of modalities, where a new token is text.
TOKEN_TYPES: Final[dict[str, Callable[[jax.Array], jax.Array]]] = {
    "token_type_ids": lambda last: last,
    "mm_token_type_ids": lambda last: last * 0,
    # Which images it attends to, [B, 1, images, tiles], in Mllama.
    "cross_attention_mask": lambda last: last,
}


def modality_contents(inputs: Mapping[str, Any], rows: int) -> list[bytes]:
    """What each row's random draws depend on beside its tokens; of inputs that are not
    divided by rows, all of them.
    """
    arrays = list(arrays_of(inputs).values())
    if not arrays:
        return []
    by_row = [array for array in arrays if len(array) == rows]
    shared = b"".join(array.tobytes() for array in arrays if len(array) != rows)
    return [
        shared + b"".join(array[row].tobytes() for array in by_row)
        for row in range(rows)
    ]


def check_reads(
    decoder: Any, inputs: Mapping[str, Any], guidance_scale: float | None
) -> None:
    """PortError for a decoder that has no use for images, or guidance, whose second
    sequence would have none.
    """
    name = type(decoder.model).__name__
    if not inputs.keys() <= type(decoder).input_names(decoder.model):
        raise NoLoop(
            f"{name} decodes without a cache here, and takes no {', '.join(inputs)}",
            where=f"{name}.generate",
            fix="use transformers' own generate, after tpuport.to_cpu(model)",
        )
    if guidance_scale is not None and guidance_scale != 1:
        raise PortError(
            "guidance_scale is for prompts of tokens alone",
            where=f"guidance_scale={guidance_scale!r} with {', '.join(inputs)}",
            fix="pass guidance_scale=1",
        )


def add_modalities(
    model: Any,
    prompts: Prompts,
    rows: int,
    rows_per_prompt: int,
    inputs: Mapping[str, Any],
) -> Prompts:
    """Prompts with the inputs of their images, videos and audio, for as many rows, and
    with the model's positions.

    Args:
        rows: of the user's batch.
        rows_per_prompt: of each of these in `prompts`.

    Raises:
        PortError: there are rows that only fill up the batch: they would have no
            images.
    """
    if not inputs:
        return prompts
    if len(prompts.tokens) != rows * rows_per_prompt:
        raise PortError(
            f"{rows * rows_per_prompt} rows with {', '.join(inputs)} do not divide over dp",
            where="the batch",
            fix="give a number of rows that dp divides, or port the model to a mesh with dp=1",
        )
    length = prompts.length
    arrays = arrays_of(inputs)
    settings: dict[str, Setting] = without(inputs, arrays)
    tensors: dict[str, Any] = {
        name: compat.to_torch(array) for name, array in arrays.items()
    }
    tokens = torch.from_numpy(
        prompts.tokens[::rows_per_prompt, -length:].astype(np.int64)
    )
    mask = torch.from_numpy(prompts.mask[::rows_per_prompt, -length:].astype(np.int64))
    _, tensors = expand_inputs(
        model,
        expand_size=rows_per_prompt,
        is_encoder_decoder=False,
        input_ids=tokens,
        attention_mask=mask,
        **tensors,
    )
    mask = tensors.pop("attention_mask")
    tokens = tokens.repeat_interleave(rows_per_prompt, dim=0)
    columns = prompts.tokens.shape[1]
    arguments: dict[str, Any] = {
        name: _as_program_argument(
            compat.to_numpy(tensor), tuple(tokens.shape), columns
        )
        for name, tensor in tensors.items()
    }
    arguments |= settings
    if _may_have_empty_images(model, tensors):
        pixels = tensors["pixel_values"].flatten(2)
        arguments[REAL_IMAGES] = HostInput.of((pixels != 0).any(-1).numpy())
    tensors |= {name: setting.value for name, setting in settings.items()}
    positions = _image_positions(model, tokens, mask, tensors)
    if positions is not None:
        arguments[POSITIONS] = _pad_columns(positions, columns)
    return prompts._replace(inputs=arguments)


def _may_have_empty_images(model: Any, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether rows with fewer images than others have some of zeros, which the model
    leaves out (Idefics2, SmolVLM).
    """
    pixels = tensors.get("pixel_values")
    parameters = forward_parameters(model)
    return (
        pixels is not None and pixels.ndim == 5 and "pixel_attention_mask" in parameters
    )


def _as_program_argument(
    array: np.ndarray, prompt_shape: tuple[int, ...], columns: int
) -> Any:
    """What has the prompt's shape, padded to its bucket; other integers and masks as a
    part of the key.
    """
    is_discrete = array.dtype == np.bool_ or np.issubdtype(array.dtype, np.integer)
    if array.shape == prompt_shape:
        return _pad_columns(array, columns)
    if is_discrete and array.shape[:2] == prompt_shape:
        # Of every token, such as which images it attends to.
        return _pad_columns(array, columns, axis=1)
    if not is_discrete:
        return array
    # Integers have 64 bits, as a processor gives them.
    return HostInput.of(array if array.dtype == np.bool_ else array.astype(np.int64))


def _pad_columns(array: np.ndarray, columns: int, axis: int = -1) -> np.ndarray:
    """Zeros in front, along an axis."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (columns - array.shape[axis], 0)
    return np.pad(array.astype(np.int32), widths)


def _image_positions(
    model: Any,
    tokens: torch.Tensor,
    mask: torch.Tensor,
    tensors: Mapping[str, torch.Tensor],
) -> np.ndarray | None:
    """Positions [B, ..., P] that a model counts by its images; None for one that counts
    tokens.
    """
    POSITIONS_OF_IMAGES.require()
    if not counts_positions_itself(type(model)):
        return None
    # They remember an offset for the next token.
    before = [
        (module, copy.copy(vars(module)))
        for module in (model, getattr(model, "model", model))
    ]
    try:
        positions = prepare_positions(
            model, tokens, {"attention_mask": mask, **tensors}
        )
    finally:
        for module, attributes in before:
            vars(module).update(attributes)
    array = positions.numpy()
    return (
        np.moveaxis(array, -2, 0)
        if array.ndim > 2
        else np.broadcast_to(array, tokens.shape)
    )
