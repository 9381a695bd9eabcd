"""The decoding after a negative prompt, beside that of the prompt.

Shapes: B batch, P columns of the negative prompt.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tpuport.generation.guidance import Guidance, Unconditional
from tpuport.generation.loop_state import (
    Arrays,
    PaddedPrompt,
    State,
    open_state,
    shard_rows,
)


def begin_unconditional(
    decoder: Any,
    arrays: Arrays,
    guidance: Guidance,
    new_columns: int,
    inputs: Mapping[str, Any],
) -> Unconditional:
    """Traced. Run the negative prompt [B, P], with room for `new_columns`."""
    tokens = shard_rows(decoder.mesh, guidance.tokens)
    mask = shard_rows(decoder.mesh, guidance.mask)
    batch, columns = tokens.shape
    prompt = PaddedPrompt(tokens, mask, columns + new_columns, inputs)
    logits, cache = decoder.forward_prompt(arrays, prompt)
    finished = jnp.zeros(batch, jnp.bool_)
    state = open_state(tokens, mask, new_columns, finished, cache)
    return Unconditional(state, logits)


def continue_unconditional(decoder: Any, arrays: Arrays, state: State) -> Unconditional:
    """Traced. Run the token chosen last after the negative prompt too."""
    assert state.unconditional is not None
    other: State = state.unconditional.state
    token = jax.lax.dynamic_slice_in_dim(state.tokens, state.length - 1, 1, axis=1)
    tokens = jax.lax.dynamic_update_slice_in_dim(
        other.tokens, token, other.length, axis=1
    )
    other = other._replace(tokens=tokens, length=other.length + 1)
    logits, cache = decoder.forward_token(arrays, other)
    return Unconditional(other._replace(cache=cache), logits)
