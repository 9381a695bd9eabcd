"""transformers' beam search inside of the loop on the device:
`GenerationMixin._beam_search`, step by step.

The rows of the loop's buffer and cache are the running beams, those of one prompt next
to each other. What each step decides about them, and the best sequences that have
ended, are in the loop's carry. Shapes: I prompts (items), N beams, C candidates of a
step, V vocabulary, T token buffer, S steps.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.errors import PortError
from tpuport.generation.generation_options import Options
from tpuport.generation.prompts import bucket_length

# transformers' score of a beam that must not win.
_LOW = -1.0e9
_EARLY_STOPPING = {False: 0, True: 1, "never": 2}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BeamSettings:
    """Settings of one call; the two counts are shapes, all else is an argument of the
    program.

    Attributes:
        candidates: continuations that are looked at in each step: enough that `beams`
            are left when all others end.
        penalties: [max_new + 1 or more], float32 powers of the lengths 0, 1, ... in
            tokens.
        early_stopping: 0 for False, 1 for True, 2 for "never".
    """

    penalties: Any
    is_penalty_positive: Any
    early_stopping: Any
    max_new: Any
    beams: int = dataclasses.field(metadata={"static": True})
    candidates: int = dataclasses.field(metadata={"static": True})


class Beams(NamedTuple):
    """What the loop carries beside the running sequences.

    Attributes:
        running_scores: [I, N], sums of log probabilities; running_parents: [I, N, S],
            for each step the row that the running beam came from, -1 for steps to come.
        sequences: int32 [I, N, T], the best that have ended; scores, is_finished:
            [I, N]; parents: [I, N, S].
        may_improve: [I], whether a running beam may still become better than those that
            have ended.
        is_real: [I], False for prompts that only fill up the batch.
    """

    running_scores: jax.Array
    running_parents: jax.Array
    sequences: jax.Array
    scores: jax.Array
    parents: jax.Array
    is_finished: jax.Array
    may_improve: jax.Array
    is_real: jax.Array


class Selection(NamedTuple):
    """What a step decides.

    Attributes:
        tokens: [I * N, T], the running sequences; rows: [I, N], of its own prompt, the
            beam that each goes on from.
        is_done: whether the search has ended.
    """

    beams: Beams
    tokens: jax.Array
    rows: jax.Array
    is_done: jax.Array


def beam_settings(options: Options) -> BeamSettings | None:
    """The settings of these options; None without a search."""
    if options.num_beams == 1:
        return None
    lengths = np.arange(bucket_length(options.max_new + 1), dtype=np.float64)
    # In 64 bits, as Python computes them for transformers. Nothing has length 0.
    with np.errstate(divide="ignore", over="ignore"):
        penalties = lengths**options.length_penalty
    return BeamSettings(
        penalties=penalties.astype(np.float32),
        is_penalty_positive=np.bool_(options.length_penalty > 0.0),
        early_stopping=np.int32(_EARLY_STOPPING[options.early_stopping]),
        max_new=np.int32(options.max_new),
        beams=options.num_beams,
        candidates=max(2, 1 + len(options.eos)) * options.num_beams,
    )


def begin_search(
    settings: BeamSettings, tokens: jax.Array, columns: int, is_real_row: jax.Array
) -> Beams:
    """Traced. Before the first step; tokens [I * N, T] have `columns` columns of
    prompt.
    """
    items = tokens.shape[0] // settings.beams
    shape = (items, settings.beams)
    parents = jnp.full((*shape, tokens.shape[1] - columns), -1, jnp.int32)
    # All beams of a prompt are equal: only the first of them counts.
    running_scores = jnp.zeros(shape, jnp.float32).at[:, 1:].set(_LOW)
    return Beams(
        running_scores=running_scores,
        running_parents=parents,
        sequences=tokens.reshape(*shape, -1),
        scores=jnp.full(shape, _LOW, jnp.float32),
        parents=parents,
        is_finished=jnp.zeros(shape, jnp.bool_),
        may_improve=jnp.ones(items, jnp.bool_),
        is_real=is_real_row[:: settings.beams],
    )


def select(
    settings: BeamSettings,
    beams: Beams,
    scores: jax.Array,
    tokens: jax.Array,
    length: jax.Array,
    new_tokens: jax.Array,
    is_end: Callable[[jax.Array, jax.Array], jax.Array],
    draw_keys: jax.Array,
    do_sample: jax.Array,
) -> Selection:
    """Traced. One step: continue the running beams, and keep the best that end.

    Args:
        scores: [I * N, V], processed log probabilities of the next token.
        tokens: [I * N, T], of which `length` columns are written, `new_tokens` of them
            by the search.
        is_end: for tokens [I, C] and sequences [I, C, T] that contain them, which
            sequences end with them.
        draw_keys: [I], random keys of this step.
    """
    items, count = beams.running_scores.shape
    vocabulary = scores.shape[-1]
    sums = (
        scores.reshape(items, count, vocabulary) + beams.running_scores[..., None]
    ).reshape(items, -1)
    top_sums, top = _best_or_drawn(
        sums, min(settings.candidates, sums.shape[1]), draw_keys, do_sample
    )
    rows, token = top // vocabulary, top % vocabulary
    sequences = _gather(tokens.reshape(items, count, -1), rows)
    sequences = jax.lax.dynamic_update_slice_in_dim(
        sequences, token[..., None], length, axis=2
    )
    parents = _gather(beams.running_parents, rows)
    rows_of_batch = rows + count * jnp.arange(items, dtype=jnp.int32)[:, None]
    parents = jax.lax.dynamic_update_slice_in_dim(
        parents, rows_of_batch[..., None], new_tokens, axis=2
    )
    ends = is_end(token, sequences) | (new_tokens + 1 >= settings.max_new)

    running_sums = top_sums + ends * jnp.float32(_LOW)
    running_scores, chosen = jax.lax.top_k(running_sums, count)
    beams = _keep_finished(
        settings, beams, sequences, parents, top_sums, ends, new_tokens
    )
    beams = beams._replace(
        running_scores=running_scores, running_parents=_gather(parents, chosen)
    )
    beams = beams._replace(may_improve=_may_improve(settings, beams, new_tokens))
    return Selection(
        beams=beams,
        tokens=_gather(sequences, chosen).reshape(tokens.shape),
        rows=jnp.take_along_axis(rows, chosen, axis=1),
        is_done=_is_done(settings, beams, ends),
    )


def _best_or_drawn(
    sums: jax.Array, count: int, keys: jax.Array, do_sample: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Traced. The `count` best of sums [I, N * V], or as many drawn without
    replacement, and their numbers.
    """

    def draw(sums: jax.Array) -> jax.Array:
        # The best of perturbed logits are draws without replacement, in order (Kool et
        # al. 2019).
        noise = jax.vmap(lambda key: jax.random.gumbel(key, sums.shape[1:]))(keys)
        return jax.lax.top_k(sums + noise, count)[1]

    best = jax.lax.cond(
        do_sample, draw, lambda sums: jax.lax.top_k(sums, count)[1], sums
    )
    return jnp.take_along_axis(sums, best, axis=1), best


def _keep_finished(
    settings: BeamSettings,
    beams: Beams,
    sequences: jax.Array,
    parents: jax.Array,
    sums: jax.Array,
    ends: jax.Array,
    new_tokens: jax.Array,
) -> Beams:
    """Traced. The best N of those that had ended and those of the candidates that end
    now.
    """
    count = settings.beams
    # The candidates after the first N are there only to go on with.
    just_finished = ends & (jnp.arange(sums.shape[1]) < count)
    scores = sums / settings.penalties[new_tokens + 1]
    is_full = jnp.all(beams.is_finished, axis=1) & (settings.early_stopping == 1)
    for is_excluded in (is_full[:, None], ~beams.may_improve[:, None], ~just_finished):
        scores = scores + is_excluded * jnp.float32(_LOW)
    merged_scores = jnp.concatenate([beams.scores, scores], axis=1)
    best_scores, best = jax.lax.top_k(merged_scores, count)
    return beams._replace(
        sequences=_gather(jnp.concatenate([beams.sequences, sequences], axis=1), best),
        scores=best_scores,
        parents=_gather(jnp.concatenate([beams.parents, parents], axis=1), best),
        is_finished=_gather(
            jnp.concatenate([beams.is_finished, just_finished], axis=1), best
        ),
    )


def _may_improve(
    settings: BeamSettings, beams: Beams, new_tokens: jax.Array
) -> jax.Array:
    """Traced. transformers' estimate, which is a heuristic with a length penalty."""
    uses_longest = (settings.early_stopping == 2) & settings.is_penalty_positive
    length = jnp.where(uses_longest, settings.max_new, new_tokens + 1)
    best_running = beams.running_scores[:, :1] / settings.penalties[length]
    worst = jnp.min(beams.scores, axis=1, keepdims=True)
    worst_finished = jnp.where(beams.is_finished, worst, jnp.float32(_LOW))
    return beams.may_improve & jnp.any(best_running > worst_finished, axis=1)


def _is_done(settings: BeamSettings, beams: Beams, ends: jax.Array) -> jax.Array:
    others = ~beams.is_real
    all_finished = jnp.all(beams.is_finished | others[:, None])
    is_stopped_early = all_finished & (settings.early_stopping == 1)
    return (
        ~jnp.any(beams.may_improve & beams.is_real)
        | is_stopped_early
        | jnp.all(ends | others[:, None])
    )


def _gather(array: jax.Array, rows: jax.Array) -> jax.Array:
    """Traced. Of each prompt [I, M, ...], these rows [I, C]."""
    return jax.vmap(lambda of_item, row: jnp.take(of_item, row, axis=0))(array, rows)


def reorder_rows(array: jax.Array, rows: jax.Array) -> jax.Array:
    """Traced. An array [I * N, ...] of a cache, with the rows [I, N] that the beams go
    on from; numbers unchanged.

    PortError for an array without a row for each beam first, whose beams cannot be told
    apart.
    """
    if array.ndim == 0:
        return array
    if array.shape[0] != rows.size:
        raise PortError(
            f"a beam search reorders the rows of the cache, and this one has an array {array.dtype}{array.shape} for "
            f"{rows.size} rows",
            where="num_beams",
            fix="pass num_beams=1",
        )
    return _gather(array.reshape(*rows.shape, *array.shape[1:]), rows).reshape(
        array.shape
    )


class Result(NamedTuple):
    """The best sequences [I * returned, ...] on the host: int64 tokens, float32 scores,
    int32 rows of each step.
    """

    sequences: torch.Tensor
    scores: torch.Tensor
    beam_indices: torch.Tensor


def read_result(beams: Beams, options: Options, first: int, columns: int) -> Result:
    """The sequences that the search returns, cut to the longest.

    Args:
        first: the first column that is not the bucket's padding; columns: of the
            prompt, with that padding.
    """
    items, returned = int(np.sum(beams.is_real)), options.num_return_sequences
    arrays = (beams.sequences, beams.scores, beams.parents)
    sequences, scores, parents = (
        np.asarray(array)[:items, :returned] for array in arrays
    )
    sequences = sequences.reshape(items * returned, -1)
    parents = parents.reshape(items * returned, -1)
    lengths = (parents >= 0).sum(axis=1)
    # As transformers fills up: a padding id of 0 counts as none.
    fill = -1
    if options.eos:
        fill = options.pad or options.eos[0]
    is_filled = np.arange(sequences.shape[1]) >= columns + lengths[:, None]
    sequences = np.where(is_filled, fill, sequences)[:, first : columns + lengths.max()]
    return Result(
        torch.from_numpy(sequences.astype(np.int64)),
        torch.from_numpy(scores.reshape(-1).copy()),
        torch.from_numpy(parents[:, : lengths.max()].copy()),
    )
