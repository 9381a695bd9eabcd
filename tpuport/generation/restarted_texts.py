"""A text that a model begins anew at some length, with another rotary table: the keys
of all its tokens are computed again.
"""

import inspect
import types
from typing import Any

import jax
import torch

from tpuport.errors import PortError
from tpuport.generation.cache_arguments import cache_argument
from tpuport.generation.generation_options import Options
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.loop_state import Arrays, PaddedPrompt, State
from tpuport.generation.prompts import Prompts
from tpuport.generation.sampling import Choice, SamplingSettings
from tpuport.patches import transformers_rotary


def run_restart(
    decoder: Any,
    arrays: Arrays,
    state: State,
    keys: jax.Array,
    prompt_columns: jax.Array,
    limit: jax.Array,
    settings: SamplingSettings,
    *,
    columns: int,
) -> State:
    """Traced. As `Decoder.run_loop`, with a cache that is computed again in each step,
    from the text's `columns` so far as if they were the prompt.
    """
    choice = Choice(keys, prompt_columns, settings)

    def step(state: State) -> State:
        tokens, mask = state.tokens[:, :columns], state.present[:, :columns]
        prompt = PaddedPrompt(tokens, mask, state.tokens.shape[1])
        logits, cache = decoder.forward_prompt(arrays, prompt)
        state = state._replace(cache=cache)
        return decoder.append(state, logits, choice)

    return decoder.loop(step, state, limit)


def restart_column(model: Any, prompts: Prompts, options: Options) -> int | None:
    """Columns of the text at which a model computes all keys again, with a rotary table
    for long texts; None if it does not.

    Phi-3's own code drops its cache there. Other models go on with the keys that they
    have, rotated by the table of their time.

    Raises:
        PortError: the prompt has images, which transformers leaves out then.
    """
    if isinstance(model, LanguageModel):
        return None
    switch = transformers_rotary.change_length(model)
    last = prompts.length + options.max_new - 1
    if switch is None or not prompts.length <= switch < last:
        return None
    if not _drops_cache(model, switch):
        return None
    if prompts.inputs:
        raise PortError(
            f"this model computes its cache again after {switch} positions, without what the prompt has beside tokens, "
            f"and a prompt of {prompts.length} tokens and {options.max_new} new ones go beyond",
            where="original_max_position_embeddings",
            fix=f"ask for at most {switch + 1 - prompts.length} new tokens",
        )
    return switch + 1 + prompts.tokens.shape[1] - prompts.length


def _drops_cache(model: Any, length: int) -> bool:
    """Whether a model's code of the host drops a cache of so many columns."""
    parameters = inspect.signature(model.prepare_inputs_for_generation).parameters
    name = cache_argument(parameters)
    if name is None:
        return False
    arguments: dict[str, Any] = {
        name: types.SimpleNamespace(get_seq_length=lambda *_: length)
    }
    if "cache_position" in parameters:
        arguments["cache_position"] = torch.tensor([length])
    tokens = torch.ones(1, length + 1, dtype=torch.int64)
    prepared = model.prepare_inputs_for_generation(tokens, **arguments)
    return prepared.get(name) is None
