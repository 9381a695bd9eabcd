"""A step of beam search in the decoding loop."""

from typing import Any

import jax
import jax.numpy as jnp

from tpuport.generation import beam_search
from tpuport.generation.loop_state import State
from tpuport.generation.sampling import SamplingSettings, step_keys
from tpuport.generation.step_functions import ask_criteria


def select_beams(
    decoder: Any,
    state: State,
    scores: jax.Array,
    keys: jax.Array,
    new_tokens: jax.Array,
    settings: SamplingSettings,
) -> State:
    """Traced. A step of beam search: the running sequences, and the cache of what
    they go on from.
    """

    def is_end(token: jax.Array, sequences: jax.Array) -> jax.Array:
        ends = jnp.any(token[..., None] == settings.eos, axis=-1)
        host = None if settings.processors is None else settings.processors.host
        return ends | ask_criteria(host, sequences, state.length + 1)

    assert settings.beams is not None
    assert state.beams is not None
    keys = step_keys(keys[:: settings.beams.beams], new_tokens)
    selection = beam_search.select(
        settings.beams, state.beams, scores, state.tokens, state.length, new_tokens, is_end, keys,
        settings.do_sample,
    )  # fmt: skip
    return state._replace(
        tokens=selection.tokens,
        length=state.length + 1,
        finished=jnp.broadcast_to(selection.is_done, state.finished.shape),
        cache=decoder.reorder_cache(state.cache, selection.rows),
        beams=selection.beams,
    )
