"""The program of a text whose first columns are in a cache of the caller's, for the
tokens behind them.

They are padded behind, not in front, so that each column of the text is the same one of
the cache. Later tokens are written over the padding. Shapes: B batch, T cache length.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tpuport.compat.tracing import trace_lock
from tpuport.generation import decoding_cache
from tpuport.generation.callers_cache import LayerForm, States, fill
from tpuport.generation.loop_state import State, shard_rows
from tpuport.generation.sampling import Choice, SamplingSettings


def run_resumed(
    decoder: Any,
    arrays: dict[str, jax.Array],
    tokens: jax.Array,
    present: jax.Array,
    keys: jax.Array,
    prompt_columns: jax.Array,
    real_rows: jax.Array,
    settings: SamplingSettings,
    states: tuple[States, ...] | None,
    column: jax.Array,
    *,
    forms: tuple[LayerForm, ...],
    chunk: int,
) -> State:
    """Traced. As `Decoder.run_prompt`, for the tokens of [B, T] from a column on, which
    are not more than `chunk`.

    Args:
        present: [B, T], False at padding.
        prompt_columns: of the text so far; real_rows: as for `run_prompt`.
        states: of the caller's cache, as `CallersCache.states` gives them.
    """
    batch, slots = tokens.shape
    tokens = shard_rows(decoder.mesh, tokens)
    present = shard_rows(decoder.mesh, present)
    cache = decoder.make_cache(slots)
    # An empty cache's layers attend to the prompt alone.
    mask = present[:, :chunk]
    if states is not None:
        cache, mask = fill(cache, states, forms, column), present
    mask = mask & (jnp.arange(mask.shape[1]) < prompt_columns)
    positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
    piece, positions = (
        jax.lax.dynamic_slice_in_dim(array, column, chunk, axis=1)
        for array in (tokens, positions)
    )
    cache = decoding_cache.set_length(cache, column)
    last = prompt_columns - column - 1
    with trace_lock:
        logits, cache = decoder.call_model(
            arrays, piece, mask, positions, cache, jnp.reshape(last, 1)
        )
    if logits.shape[1] != 1:
        logits = jax.lax.dynamic_slice_in_dim(logits, last, 1, axis=1)
    state = State(
        tokens, present, jnp.asarray(prompt_columns, jnp.int32), jnp.arange(batch) >= real_rows,
        decoding_cache.set_length(cache, prompt_columns),
    )  # fmt: skip
    logits = logits[:, 0].astype(jnp.float32)
    choice = Choice(keys, prompt_columns, settings)
    return decoder.choose_first(state, logits, choice, room=slots)
