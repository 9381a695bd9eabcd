"""Inferred sharding rules, and what they come to on a mesh, which may not divide all
that they would.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jax.sharding import Mesh

from tpuport.sharding import Parameter, ShardingRules
from tpuport.sharding.plans import tensor_parallel_plan
from tpuport.sharding.rules_format import plain_entry
from tpuport.sharding.specs import fit
from tpuport.verification.model_runs import Arguments, copy_model


def infer_rules(
    model: torch.nn.Module, arguments: Arguments, mesh: Mesh
) -> ShardingRules | None:
    """Rules from the structure of a model; None if it has a plan, or the mesh no axis
    for them.

    Raises:
        PortError: its code cannot be traced.
    """
    if mesh.shape.get("tp", 1) == 1 or tensor_parallel_plan(model):
        return None
    inputs = arguments.copy()
    return ShardingRules.infer(copy_model(model), inputs.keywords or inputs.positional)


def divided_rules(
    rules: ShardingRules, weights: Mapping[str, Parameter], mesh: Mesh
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """The rules that divide weights on a mesh, and why it leaves whole what others
    would divide.

    Returns:
        (for each pattern its entries as a file has them, one for each dimension; for
        the patterns that the mesh does not fit, the reason).
    """
    divided: dict[str, list[Any]] = {}
    reasons: dict[str, str] = {}
    for name, weight in weights.items():
        rule = rules.rule(name)
        if not any(rule.spec):
            continue
        spec, misfits = fit(rule, tuple(weight.shape), mesh)
        for misfit in misfits:
            reasons.setdefault(rule.pattern, misfit.text)
        if any(spec):
            divided.setdefault(rule.pattern, list(map(plain_entry, spec)))
    # In the order in which they are tried.
    in_order = {pattern: divided[pattern] for pattern in rules if pattern in divided}
    return in_order, reasons
