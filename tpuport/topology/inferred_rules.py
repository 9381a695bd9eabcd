"""Sharding rules for a target whose model has no plan, and rules as a file has them."""

from collections.abc import Mapping
from typing import Any, Final

import jax
import torch
from jax.sharding import NamedSharding

from tpuport.sharding import ShardingRules
from tpuport.sharding.plans import tensor_parallel_plan
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.trace_errors import CannotTrace

# Of the prompt that a language model is traced with: longer than one token, so that
# scores have dimensions.
_PROMPT: Final = (1, 16)


def infer_missing_rules(
    model: torch.nn.Module, inputs: Mapping[str, Any] | Prefill | Decode
) -> ShardingRules | None:
    """Rules from the structure of a model's forward pass; None if it has a plan, or
    nothing can be divided.
    """
    if tensor_parallel_plan(model):
        return None
    if isinstance(inputs, Prefill | Decode):
        inputs = {"input_ids": torch.zeros(_PROMPT, dtype=torch.int32, device="meta")}
    try:
        rules = ShardingRules.infer(model, inputs)
    except CannotTrace:
        # Compiling fails for the same reason, and reports it.
        return None
    return rules if any(any(spec) for spec in rules.values()) else None


def rules_as_placed(
    rules: ShardingRules, weights: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, list[Any]]:
    """The rules with what their weights really got on a program's mesh, which may not
    divide all of them.

    A rule knows how many heads its weights have, which a file of rules cannot say.
    """
    placed: dict[str, list[Any]] = {}
    for name, weight in weights.items():
        rule = rules.rule(name)
        if rule.pattern and isinstance(weight.sharding, NamedSharding):
            placed.setdefault(rule.pattern, list(weight.sharding.spec))
    # In the order in which they are tried.
    return {pattern: placed[pattern] for pattern in rules if pattern in placed}
