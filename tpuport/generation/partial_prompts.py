"""A prompt that runs in parts: chunk by chunk, or what all rows begin with once and the
rest of each row after it.

Shapes: B batch, P prompt columns, T cache length, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.compat.tracing import trace_lock
from tpuport.generation.decoding_cache import cut_to_windows, spread_over_rows
from tpuport.generation.loop_state import Arrays, PaddedPrompt, PromptParts
from tpuport.generation.prompts import Prompts, bucket_length
from tpuport.generation.residual_stream import summed_once

# So many tokens that all rows begin with are worth a call of their own, and a multiple
# of it, so that prefixes of similar lengths share a program.
_LEAST_SHARED = 32


def share_prefix(prompts: Prompts) -> tuple[Prompts, int]:
    """The prompts in columns that suit what all rows begin with, and how many tokens of
    that run once.
    """
    lengths = prompts.mask.sum(axis=1)
    rows = [
        tokens[mask] for tokens, mask in zip(prompts.tokens, prompts.mask, strict=True)
    ]
    # A token of each row is left, whose logits are asked for.
    common = int(lengths.min()) - 1
    for row in rows:
        differs = row[:common] != rows[0][:common]
        common = int(np.argmax(differs)) if differs.any() else common
    shared = common // _LEAST_SHARED * _LEAST_SHARED
    if shared == 0 or len(rows) == 1:
        return prompts, 0
    columns = shared + bucket_length(int(lengths.max()) - shared)
    tokens, mask = (
        _resize(array, max(columns, prompts.length))
        for array in (prompts.tokens, prompts.mask)
    )
    return prompts._replace(tokens=tokens, mask=mask), shared


def _resize(array: np.ndarray, columns: int) -> np.ndarray:
    """[B, P] with other columns of padding in front."""
    missing = columns - array.shape[1]
    return np.pad(array, ((0, 0), (missing, 0))) if missing > 0 else array[:, -missing:]


def run_parts(
    decoder: Any, arrays: Arrays, prompt: PaddedPrompt
) -> tuple[jax.Array, Any]:
    """Traced. Float32 logits [B, V] after the prompt [B, P], and the cache, as
    `decoder.forward_prompt`.
    """
    parts = prompt.parts
    assert parts is not None
    if parts.shared:
        logits, cache = _prefill_behind_prefix(decoder, arrays, prompt, parts)
    else:
        logits, cache = _prefill_by_chunks(decoder, arrays, prompt, parts.chunk)
    if decoder.keeps_all_columns:
        return logits, cache
    windows, columns = decoder.make_cache(prompt.slots), prompt.tokens.shape[1]
    return logits, cut_to_windows(cache, windows, columns)


def _prefill_by_chunks(
    decoder: Any, arrays: Arrays, prompt: PaddedPrompt, chunk: int | None
) -> tuple[jax.Array, Any]:
    """Traced. So many columns at a time: activations of all of them would take memory.
    The cache keeps all columns.
    """
    tokens, mask, slots, *_ = prompt
    columns = tokens.shape[1]
    chunk = min(chunk or columns, columns)
    first = columns % chunk or chunk
    present = _pad_mask(mask, slots)
    cache = decoder.make_cache(slots, keeps_all=True)
    logits, cache = decoder.forward_first(
        arrays, tokens[:, :first], mask[:, :first], cache
    )

    def run_chunk(
        number: jax.Array, carry: tuple[jax.Array, Any]
    ) -> tuple[jax.Array, Any]:
        column = first + number * chunk
        piece = jax.lax.dynamic_slice_in_dim(tokens, column, chunk, axis=1)
        return _continue(decoder, arrays, piece, present, column, carry[1])

    return jax.lax.fori_loop(0, (columns - first) // chunk, run_chunk, (logits, cache))


def _prefill_behind_prefix(
    decoder: Any, arrays: Arrays, prompt: PaddedPrompt, parts: PromptParts
) -> tuple[jax.Array, Any]:
    """Traced. What all rows begin with in one row, and then the last columns of all,
    with the cache in every row.

    A shorter row has some of the shared tokens in these columns, and computes them
    again.
    """
    tokens, mask, slots, *_ = prompt
    padding = jnp.sum(~mask, axis=1, dtype=jnp.int32)
    prefix = jax.lax.dynamic_slice(tokens, (0, padding[0]), (1, parts.shared))
    everything = jnp.ones(prefix.shape, jnp.bool_)
    shared = PaddedPrompt(prefix, everything, parts.shared)
    _, cache = _prefill_by_chunks(decoder, arrays, shared, parts.chunk)
    cache = spread_over_rows(cache, decoder.make_cache(slots, keeps_all=True), padding)
    column = jnp.asarray(parts.shared, jnp.int32)
    rest, present = tokens[:, parts.shared :], _pad_mask(mask, slots)
    return _continue(decoder, arrays, rest, present, column, cache)


def _continue(
    decoder: Any,
    arrays: Arrays,
    tokens: jax.Array,
    present: jax.Array,
    column: jax.Array,
    cache: Any,
) -> tuple[jax.Array, Any]:
    """Traced. Float32 logits [B, V] after tokens that begin in a column, and the
    cache.
    """
    with trace_lock, summed_once(decoder.model, decoder.mesh):
        end = column + tokens.shape[1]
        logits, cache = decoder.forward_tokens(
            arrays, tokens, present, column, end, cache, only_last=True
        )
    return logits[:, 0], cache


def _pad_mask(mask: jax.Array, slots: int) -> jax.Array:
    return jnp.pad(mask, ((0, 0), (0, slots - mask.shape[1])), constant_values=True)
