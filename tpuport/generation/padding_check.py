"""Whether columns of padding change what a model says, asked of the model itself with a
few tokens.

Buckets let prompts of several lengths share a program, and put columns of padding in
front of a prompt. Most models hide them by their attention mask; recurrent states may
or may not, and only the model's code knows.
"""

from typing import Any

import jax
import numpy as np
import torch

from tpuport.generation.loop_state import Arrays, PaddedPrompt
from tpuport.generation.model_errors import explained_for_generate
from tpuport.generation.model_inputs import vocabulary_size

# Tokens of the prompts that are compared. Few, because what padding leaves in a state
# fades with each token.
_TOKENS = 3
_COLUMNS = 32  # the smallest bucket
# Of the spread of the logits. What another order of sums changes stays below; in
# bfloat16 it changes more.
_LARGEST_ERROR = 1e-3
_LARGEST_ERROR_OF_HALVES = 1e-2
# In the names of methods: linear biases (ALiBi), or rotation by columns.
_OF_DISTANCES = ("alibi", "rotary")


def depends_on_distances(model: torch.nn.Module) -> bool:
    """Whether methods of a model's modules say that its attention depends on distances,
    so that padding in front of all rows may change nothing.
    """
    classes = {cls for module in model.modules() for cls in type(module).__mro__}
    return any(
        word in name for cls in classes for name in vars(cls) for word in _OF_DISTANCES
    )


def hides_padding(decoder: Any) -> bool:
    """Whether a prompt's logits are the same with padding in front of it and
    without.
    """
    tokens = _example_tokens(decoder)
    padding = ((0, 0), (_COLUMNS - _TOKENS, 0))
    padded = np.pad(tokens, padding), np.pad(np.ones(tokens.shape, bool), padding)
    exact = logits_of_prompt(decoder, tokens, np.ones(tokens.shape, bool))
    return are_close(decoder, exact, logits_of_prompt(decoder, *padded))


def _example_tokens(decoder: Any) -> np.ndarray:
    """Token ids [1, _TOKENS], all different as far as the vocabulary goes."""
    return np.arange(1, _TOKENS + 1, dtype=np.int32)[None] % vocabulary_size(
        decoder.model
    )


def logits_of_prompt(decoder: Any, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Logits [B, V] after a prompt [B, P], as `decoder.forward_prompt` gives them, in
    the model's own precision.
    """

    def run(arrays: Arrays, tokens: jax.Array, mask: jax.Array) -> jax.Array:
        prompt = PaddedPrompt(tokens, mask, _COLUMNS)
        return decoder.forward_prompt(arrays, prompt)[0]

    with explained_for_generate(decoder):
        return decoder.evaluate(run, tokens, mask)


def are_close(decoder: Any, expected: np.ndarray, actual: np.ndarray) -> bool:
    """Whether two results of one computation differ by rounding alone, as far as a few
    numbers can tell.
    """
    weights = decoder.model.get_input_embeddings().weight
    most = (
        _LARGEST_ERROR_OF_HALVES
        if weights.dtype in (torch.bfloat16, torch.float16)
        else _LARGEST_ERROR
    )
    spread = max(float(np.std(expected)), 1e-9)
    return bool(np.abs(expected - actual).max() <= most * spread)
