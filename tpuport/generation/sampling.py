"""From logits to the next token, every setting an argument of the compiled program.

Shapes: B batch, V vocabulary, T token buffer, N slots for end-of-sequence ids.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from tpuport.errors import PortError
from tpuport.generation.beam_search import BeamSettings, beam_settings
from tpuport.generation.generation_options import Options
from tpuport.generation.guidance import Guidance
from tpuport.generation.logits_filters import least_kept, least_tokens
from tpuport.generation.logits_processors import (
    BANS,
    BIASES,
    CUTS,
    ENTROPY,
    FORCES,
    LAST,
    Processors,
    Step,
    penalize,
)
from tpuport.generation.step_outputs import OutputSettings, output_settings

# A fixed number of slots, so that another list of ids needs no other program.
EOS_SLOTS = 16


class SamplingSettings(NamedTuple):
    """Scalars of one call. They are arrays, so that changing them compiles nothing;
    `eos` [N] is filled up with -1.

    What is None is not in the program.
    """

    do_sample: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    repetition_penalty: Any
    min_new: Any
    eos: Any
    pad: Any
    processors: Processors | None = None
    beams: BeamSettings | None = None
    outputs: OutputSettings | None = None
    guidance: Guidance | None = None


class Choice(NamedTuple):
    """How the rows of a call choose their tokens.

    Attributes:
        keys: random key data [B, 2]; prompt_columns: of the buffer, with the bucket's
            padding.
    """

    keys: jax.Array
    prompt_columns: jax.Array
    settings: SamplingSettings


def sampling_settings(options: Options) -> SamplingSettings:
    """The arrays for these options; a filter that is off gets the value that filters
    nothing.
    """
    if len(options.eos) > EOS_SLOTS:
        raise PortError(
            f"{len(options.eos)} end-of-sequence ids, at most {EOS_SLOTS} are supported",
            where="eos_token_id",
        )
    # A fixed number of slots, so that the program does not depend on how many ids there
    # are.
    eos = np.full(EOS_SLOTS, -1, np.int32)
    eos[: len(options.eos)] = options.eos
    return SamplingSettings(
        do_sample=np.bool_(options.do_sample),
        temperature=np.float32(options.temperature),
        # 0 is none.
        top_k=np.int32(options.top_k and max(options.top_k, options.least_tokens)),
        top_p=np.float32(options.top_p),
        min_p=np.float32(options.min_p),
        repetition_penalty=np.float32(options.repetition_penalty),
        min_new=np.int32(options.min_new),
        eos=eos,
        # No token has this id, and the loop tests for it.
        pad=np.int32(-1 if options.pad is None else options.pad),
        beams=beam_settings(options),
        outputs=output_settings(options),
    )


def process_logits(
    logits_BV: Float[Array, "B V"],
    tokens_BT: Int[Array, "B T"],
    present_BT: Bool[Array, "B T"],
    new_tokens: Int[Array, ""],
    settings: SamplingSettings,
) -> Float[Array, "B V"]:
    """Traced. What transformers' logits processors give, in the order of
    `_get_logits_processor`. Removed tokens have -inf.

    Args:
        logits_BV: float32 logits of the next token.
        tokens_BT: prompt and generated tokens so far; `present_BT` is False at padding
            and at slots not yet written.
        new_tokens: how many have been generated so far.
    """
    ids = jnp.arange(logits_BV.shape[-1], dtype=jnp.int32)
    ends = jnp.any(ids[None] == settings.eos[:, None], axis=0)
    processors, scores = settings.processors, logits_BV
    step = None
    if processors is not None:
        step = Step(processors, tokens_BT, new_tokens, ends)
        if processors.penalizes_padding:
            present_BT = step.visible

    def process(names: tuple[str, ...], scores: jax.Array) -> jax.Array:
        return scores if step is None else step.process(names, scores)

    def cut(scores: jax.Array) -> jax.Array:
        scores = process(ENTROPY, scores / settings.temperature)
        return process(CUTS, _filter(step, scores, settings))

    scores = process(BIASES, scores)
    scores = jax.lax.cond(
        settings.repetition_penalty != 1.0,
        lambda s: penalize(s, tokens_BT, present_BT, settings.repetition_penalty),
        lambda s: s,
        scores,
    )
    scores = process(BANS, scores)
    scores = jnp.where((new_tokens < settings.min_new) & ends, -jnp.inf, scores)
    scores = process(FORCES, scores)
    scores = jax.lax.cond(settings.do_sample, cut, lambda s: s, scores)
    return process(LAST, scores)


def _filter(
    step: Step | None, scores: jax.Array, settings: SamplingSettings
) -> jax.Array:
    """Top-k, top-p and min-p of [B, V]; the sort of the first two runs only when one of
    them is on.
    """
    is_cut = (settings.top_k > 0) | (settings.top_p < 1.0)
    scores = jax.lax.cond(
        is_cut, lambda s: _top_k_top_p(step, s, settings), lambda s: s, scores
    )
    probabilities = jax.nn.softmax(scores, axis=-1)
    floor = settings.min_p * jnp.max(probabilities, axis=-1, keepdims=True)
    # At min_p = 1 the most probable token must stay whatever the product rounds to.
    keep = (probabilities >= floor) | (probabilities >= least_kept(step, probabilities))
    return jnp.where((settings.min_p > 0.0) & ~keep, -jnp.inf, scores)


def _top_k_top_p(
    step: Step | None, scores: jax.Array, settings: SamplingSettings
) -> jax.Array:
    """One ascending sort serves both: top-k keeps ties with the k-th score, top-p the
    smallest set of mass above p.
    """
    vocabulary = scores.shape[-1]
    order = jnp.argsort(scores, axis=-1)
    ascending = jnp.take_along_axis(scores, order, axis=-1)
    k = jnp.where(
        settings.top_k > 0, jnp.minimum(settings.top_k, vocabulary), vocabulary
    )
    kth = jnp.take_along_axis(
        ascending, jnp.broadcast_to(vocabulary - k, (scores.shape[0], 1)), axis=-1
    )
    ascending = jnp.where(ascending < kth, -jnp.inf, ascending)
    mass = jnp.cumsum(jax.nn.softmax(ascending, axis=-1), axis=-1)
    last = jnp.arange(vocabulary) >= vocabulary - least_tokens(step)
    remove = (settings.top_p < 1.0) & (mass <= 1.0 - settings.top_p) & ~last
    filtered = jnp.where(remove, -jnp.inf, ascending)
    # The inverse permutation brings each score back to its token.
    rank = jnp.argsort(order, axis=-1)
    return jnp.take_along_axis(filtered, rank, axis=-1)


def step_keys(keys_B2: UInt32[Array, "B 2"], new_tokens: Int[Array, ""]) -> jax.Array:
    """Traced. A random key for each row in this step."""
    return jax.vmap(
        lambda key: jax.random.fold_in(jax.random.wrap_key_data(key), new_tokens)
    )(keys_B2)


def choose_tokens(
    scores_BV: Float[Array, "B V"],
    keys_B2: UInt32[Array, "B 2"],
    new_tokens: Int[Array, ""],
    settings: SamplingSettings,
) -> Int[Array, " B"]:
    """Traced. The next token of each row: argmax, or a draw with the row's own key,
    whatever the other rows are.
    """
    keys = step_keys(keys_B2, new_tokens)
    return jax.lax.cond(
        settings.do_sample,
        lambda s: jax.vmap(jax.random.categorical)(keys, s).astype(jnp.int32),
        lambda s: jnp.argmax(s, axis=-1).astype(jnp.int32),
        scores_BV,
    )
