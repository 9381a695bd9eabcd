"""What inferred sharding rules come to on a mesh, which may not divide all that they
would.
"""

from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from tpuport.rules_format import plain_entry
from tpuport.sharding import Parameter, ShardingRules
from tpuport.sharding.specs import fit


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
        spec, misfits = fit(rule, tuple(weight.shape), mesh)
        for misfit in misfits:
            reasons.setdefault(rule.pattern, misfit.text)
        if any(spec):
            divided.setdefault(rule.pattern, list(map(plain_entry, spec)))
    # In the order in which they are tried.
    return {
        pattern: divided[pattern] for pattern in rules if pattern in divided
    }, reasons
