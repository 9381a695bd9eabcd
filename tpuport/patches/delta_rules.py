"""Linear attention by the delta rule, as one loop over chunks of tokens.

transformers has kernels for a GPU. What it computes everywhere else is one copy of a
chunk's body for each chunk of the prompt, and in some models 63 steps of a substitution
in front of it, one copy each: programs that take minutes to compile, and longer for
longer prompts. Letters: B rows, L tokens, H heads, G heads of queries and keys, N
chunks, C tokens of a chunk, K width of a key, V width of a value, D 1 or K.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.compat.recording import as_one_node


class Chunk(NamedTuple):
    """Float32 arrays of one chunk, or of all, which then come first.

    Attributes:
        query, key: [B, H, C, K]; query is scaled.
        weighted_key, weighted_value: key and value times beta, [B, H, C, K] and
            [B, H, C, V].
        decay: [B, H, C, D], the logarithm of what is left of the state since the
            chunk's start.
    """

    query: jax.Array
    key: jax.Array
    weighted_key: jax.Array
    weighted_value: jax.Array
    decay: jax.Array


class Prepared(NamedTuple):
    """What a chunk computes without the state.

    Attributes:
        new_values: [B, H, C, V] and reads: [B, H, C, K], whose product with the state
            is subtracted from them.
        scores: [B, H, C, C] of queries and keys within the chunk.
    """

    new_values: jax.Array
    reads: jax.Array
    scores: jax.Array


@as_one_node
def chunk_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Traced. The gated delta rule (Yang et al. 2024, section 3.3), and with a decay of
    each channel that of Kimi.

    Args:
        query, key: [B, L, G, K]; value: [B, L, H, V], whose heads share those of keys
            in groups.
        g: logarithms of the decay, [B, L, H], or [B, L, H, K] of each channel.
        beta: [B, L, H], how much a token replaces of what the state says.
        initial_state: [B, H, K, V], zeros if it is None.

    Returns:
        [B, L, H, V], and with `output_final_state` the state [B, H, K, V] after the
        last token.
    """
    arrays = compat.as_jax((query, key, value, g, beta))
    queries, keys, values, decay, weights = (
        array.swapaxes(1, 2).astype(jnp.float32) for array in arrays
    )
    groups = values.shape[1] // keys.shape[1]
    queries, keys = (jnp.repeat(array, groups, axis=1) for array in (queries, keys))
    if use_qk_l2norm_in_kernel:
        queries, keys = _normalize(queries), _normalize(keys)
    if decay.ndim == 3:
        decay = decay[..., None]
    weights = weights[..., None]
    parts = (
        queries * keys.shape[-1] ** -0.5,
        keys,
        keys * weights,
        values * weights,
        decay,
    )
    chunks = Chunk(*(_divide(array, chunk_size) for array in parts))
    chunks = chunks._replace(decay=jnp.cumsum(chunks.decay, axis=-2))
    if initial_state is None:
        state = jnp.zeros(
            (*keys.shape[:2], keys.shape[-1], values.shape[-1]), jnp.float32
        )
    else:
        state = compat.as_jax(initial_state).astype(jnp.float32)
    last_state, outputs = _run_chunks(chunks, state)
    # [N, B, H, C, V] -> [B, L, H, V], without what fills up the last chunk.
    output = jnp.moveaxis(outputs, 0, 2).reshape(
        *values.shape[:2], -1, values.shape[-1]
    )
    output = output[:, :, : values.shape[2]].swapaxes(1, 2).astype(arrays[0].dtype)
    return compat.wrap(output), compat.wrap(last_state) if output_final_state else None


def _normalize(array: jax.Array) -> jax.Array:
    """Traced. Vectors of length one, as transformers' `l2norm`."""
    return array * jax.lax.rsqrt(jnp.sum(array * array, axis=-1, keepdims=True) + 1e-6)


def _divide(array: jax.Array, chunk_size: int) -> jax.Array:
    """Traced. [B, H, L, ...] in chunks [N, B, H, C, ...]; zeros fill up the last, and
    change no state.
    """
    array = jnp.pad(array, ((0, 0), (0, 0), (0, -array.shape[2] % chunk_size), (0, 0)))
    return jnp.moveaxis(
        array.reshape(*array.shape[:2], -1, chunk_size, array.shape[-1]), 2, 0
    )


def _run_chunks(chunks: Chunk, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Traced. The state after all chunks, and what each of them gives,
    [N, B, H, C, V].
    """
    # A decay of each channel makes [C, C, K] of a chunk and head, which would be too
    # much for all chunks at once.
    if chunks.decay.shape[-1] > 1:
        return jax.lax.scan(
            lambda state, chunk: _step(state, chunk, _prepare(chunk)), state, chunks
        )
    return jax.lax.scan(
        lambda state, pair: _step(state, *pair), state, (chunks, _prepare(chunks))
    )


def _prepare(chunk: Chunk) -> Prepared:
    """Traced. Each token's change of the state depends on those before it: a triangular
    system.
    """
    system = _decayed_products(chunk.weighted_key, chunk.key, chunk.decay)
    sides = jnp.concatenate(
        [chunk.weighted_value, chunk.weighted_key * jnp.exp(chunk.decay)], axis=-1
    )
    solved = jax.lax.platform_dependent(system, sides, cpu=_substitute, default=_solve)
    new_values, reads = jnp.split(solved, [chunk.weighted_value.shape[-1]], axis=-1)
    return Prepared(
        new_values, reads, _decayed_products(chunk.query, chunk.key, chunk.decay)
    )


def _solve(system: jax.Array, sides: jax.Array) -> jax.Array:
    """Traced. The solution [..., C, V] of a lower triangular system [..., C, C] with
    ones on its diagonal.
    """
    return jax.lax.linalg.triangular_solve(
        system, sides, left_side=True, lower=True, unit_diagonal=True
    )


def _substitute(system: jax.Array, sides: jax.Array) -> jax.Array:
    """Traced. The same by forward substitution, a row at a time.

    On the CPU jax solves batches with LAPACK, in threads that several simulated devices
    take from one another, until all of them wait for ever. It is also many times slower
    there than these products.
    """
    below_diagonal = jnp.tril(system, -1)

    def solve_row(row: jax.Array, solution: jax.Array) -> jax.Array:
        known_part = (
            jax.lax.dynamic_slice_in_dim(below_diagonal, row, 1, axis=-2) @ solution
        )
        side = jax.lax.dynamic_slice_in_dim(solution, row, 1, axis=-2)
        return jax.lax.dynamic_update_slice_in_dim(
            solution, side - known_part, row, axis=-2
        )

    return jax.lax.fori_loop(0, sides.shape[-2], solve_row, sides)


def _step(
    state: jax.Array, chunk: Chunk, prepared: Prepared
) -> tuple[jax.Array, jax.Array]:
    """Traced. The state [B, H, K, V] after a chunk, and the chunk's output
    [B, H, C, V].
    """
    changes = prepared.new_values - prepared.reads @ state
    output = (chunk.query * jnp.exp(chunk.decay)) @ state + prepared.scores @ changes
    end = chunk.decay[..., -1:, :]
    remaining_key = chunk.key * jnp.exp(end - chunk.decay)
    state = (
        state * jnp.exp(end).swapaxes(-1, -2) + remaining_key.swapaxes(-1, -2) @ changes
    )
    return state, output


def _decayed_products(left: jax.Array, right: jax.Array, decay: jax.Array) -> jax.Array:
    """Traced. [..., C, C]: of each token with itself and those before it, less what has
    decayed in between.
    """
    between = decay[..., :, None, :] - decay[..., None, :, :]
    is_before = jnp.tri(decay.shape[-2], dtype=jnp.bool_)[..., None]
    # Where it is not, the exponent is positive and may overflow.
    factors = jnp.exp(jnp.where(is_before, between, -jnp.inf))
    if factors.shape[-1] == 1:
        return (left @ right.swapaxes(-1, -2)) * factors[..., 0]
    return jnp.einsum("...ik,...jk,...ijk->...ij", left, right, factors)
