"""Classifier-free guidance of a language model: the same tokens after a negative
prompt, decoded beside the prompt's.

transformers' `UnbatchedClassifierFreeGuidanceLogitsProcessor`, the first of its
processors (Sanchez et al. 2023). Shapes: B rows, P columns of the negative prompt, V
vocabulary.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from tpuport.errors import PortError
from tpuport.generation.generation_options import Options
from tpuport.generation.prompts import Prompts, bucket_length, check_prompt
from tpuport.generation.request import Request


class Guidance(NamedTuple):
    """Arguments of the program: `scale`, and the negative prompt [B, P] with its
    mask.
    """

    scale: Any
    tokens: Any
    mask: Any


class Unconditional(NamedTuple):
    """In the loop's carry: `state`, the decoding after the negative prompt, and the
    logits [B, V] it gave last.
    """

    state: Any
    logits: jax.Array


def read_guidance(
    request: Request,
    options: Options,
    prompts: Prompts,
    vocabulary: int,
    *,
    uses_buckets: bool,
) -> Guidance | None:
    """The negative prompts of all rows; without any, the last token of each prompt, as
    in transformers.

    Raises:
        PortError: ids outside the vocabulary, another number of rows, or padding.
    """
    if options.guidance_scale is None:
        return None
    rows = len(prompts.tokens)
    negative_ids = request.negative_prompt_ids
    if negative_ids is None:
        tokens = prompts.tokens[:, -1:]
    else:
        negative_mask = request.negative_prompt_attention_mask
        tokens, mask = check_prompt(negative_ids, negative_mask, None, (), vocabulary)
        _check_negative(tokens, mask, prompts.real_rows // options.rows_per_prompt)
        tokens = np.repeat(tokens, options.rows_per_prompt, axis=0)
        tokens = np.pad(tokens, ((0, rows - len(tokens)), (0, 0)), mode="edge")
    length = tokens.shape[1]
    columns = bucket_length(length) if uses_buckets else length
    padding = ((0, 0), (columns - length, 0))
    return Guidance(
        np.float32(options.guidance_scale),
        np.pad(tokens, padding).astype(np.int32),
        np.pad(np.ones(tokens.shape, bool), padding),
    )


def _check_negative(tokens: np.ndarray, mask: np.ndarray, rows: int) -> None:
    if len(tokens) != rows:
        raise PortError(
            f"{len(tokens)} negative prompts, {rows} prompts",
            where="negative_prompt_ids",
            fix="give one for each prompt",
        )
    if not mask.all():
        # There it counts the positions by columns, padding included, and not by the
        # mask.
        raise PortError(
            "padded negative prompts are not supported: transformers gives their tokens other positions",
            where="negative_prompt_attention_mask",
            fix="give negative prompts of one length, or generate prompt by prompt",
        )


def guide(scores: jax.Array, unconditional: jax.Array, scale: jax.Array) -> jax.Array:
    """Traced. Log probabilities [B, V], moved away from those after the negative
    prompt.
    """
    scores, unconditional = (
        jax.nn.log_softmax(values, axis=-1) for values in (scores, unconditional)
    )
    return scale * (scores - unconditional) + unconditional
