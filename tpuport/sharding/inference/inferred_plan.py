"""`infer_plan`: which weights of a model to divide over `tp`, as rules, with the reason
for each weight.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from math import gcd
from typing import Any

from jax.sharding import Mesh, PartitionSpec

from tpuport.base.mappings import names_of_each
from tpuport.errors import PortError
from tpuport.sharding.inference.choosing import Choice, choose
from tpuport.sharding.inference.model_trace import trace_model
from tpuport.sharding.inference.reasons import Reasons
from tpuport.sharding.inference.rule_patterns import patterns_of
from tpuport.sharding.inference.traced_program import Program, read_program
from tpuport.sharding.inference.weight_plan import WeightPlan
from tpuport.sharding.specs import Rule, format_spec
from tpuport.sharding.styles import AXIS


@dataclasses.dataclass(frozen=True)
class InferredPlan:
    """A plan for every weight of a model, and the rules that express it. `str()` is a
    table.
    """

    weights: tuple[WeightPlan, ...]
    rules: tuple[Rule, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan in plain lists, dicts, strings and numbers."""
        return {
            "rules": {rule.pattern: list(rule.spec) for rule in self.rules},
            "weights": [weight.to_dict() for weight in self.weights],
        }

    def __str__(self) -> str:
        rows = [
            (rule.pattern, format_spec(rule.spec), rule.reason) for rule in self.rules
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)) for row in rows]
        # The last column is padded too.
        return "\n".join(map(str.rstrip, lines))


def infer_plan(model: Any, inputs: Any, mesh: Mesh | None = None) -> InferredPlan:
    """A tensor-parallel plan from the structure of a model's forward pass.

    Args:
        model: a torch module; its weights may be on the meta device and are not read.
        inputs: of one call, as `trace_model` takes them. Tensors may be on the meta
            device. Sizes matter little, but a sequence should be longer than one token.
        mesh: that the plan is for: what its `tp` does not divide stays whole. None for
            any mesh whose `tp` is a power of two: an odd number of rows or heads stays
            whole.

    Raises:
        PortError: this is not a torch module, or the mesh has no axis `tp`.
        CannotTrace: the model's code cannot be traced.
    """
    if not hasattr(model, "named_parameters"):
        raise PortError(
            f"a plan is inferred for a torch module, and this is a {type(model).__name__}",
            fix="pass the model itself; of a pipeline, pass the part to shard, such as pipe.transformer",
        )
    if mesh is not None and AXIS not in mesh.shape:
        raise PortError(
            f"the mesh has no axis {AXIS}",
            where=f"a mesh with {', '.join(mesh.axis_names)}",
            fix="tpuport.create_mesh(tp=...) makes one that has it",
        )
    program = read_program(*trace_model(model, inputs))
    choice = choose(program)
    reasons = Reasons(program, choice)
    weights = []
    for names in _tied_names(model):
        # The trace has a tied weight by its first name.
        reason = reasons.explain(names[0])
        plan = _plan_weight(names, program, choice, reason)
        weights.append(_without_misfit(plan, mesh))
    return InferredPlan(tuple(weights), tuple(_rules(weights)))


def _tied_names(model: Any) -> list[tuple[str, ...]]:
    """The names of each weight; several if modules share it."""
    named = model.named_parameters(remove_duplicate=False)
    return list(map(tuple, names_of_each(named)))


def _plan_weight(
    names: tuple[str, ...], program: Program, choice: Choice, reason: str
) -> WeightPlan:
    shape = program.weights[names[0]].shape
    cut = choice.cuts.get(names[0])
    if cut is None:
        return WeightPlan(names, shape, PartitionSpec(), None, reason)
    entries: list[str | None] = [None] * len(shape)
    entries[cut.dimension] = AXIS
    return WeightPlan(names, shape, PartitionSpec(*entries), cut.units, reason)


def _without_misfit(plan: WeightPlan, mesh: Mesh | None) -> WeightPlan:
    """The plan of a weight, or to leave it whole if a mesh does not divide it; None
    stands for every power of two.
    """
    if not any(plan.spec):
        return plan
    size = plan.shape[list(plan.spec).index(AXIS)]
    # Odd numbers, such as the 50257 tokens of GPT-2, divide over no power of two.
    parts = 2 if mesh is None else mesh.shape[AXIS]
    count, unit = (size, "rows") if plan.heads is None else (plan.heads, "heads")
    if count % parts == 0 and size % parts == 0:
        return plan
    devices = f"{AXIS}={parts}" if mesh is not None else "any power of two of devices"
    reason = f"whole: {count} {unit} do not divide evenly over {devices}"
    return dataclasses.replace(plan, spec=PartitionSpec(), heads=None, reason=reason)


def _rules(weights: Iterable[WeightPlan]) -> list[Rule]:
    """A rule for each kind of weight that is divided, and for each matrix that is
    not.
    """
    decisions = {name: weight for weight in weights for name in weight.names}
    rules = []
    for pattern, members in patterns_of(decisions).items():
        first = members[0]
        if not any(first.spec) and len(first.shape) < 2:
            # What no rule matches is replicated: rules for all norms and biases would
            # only be noise.
            continue
        # One rule for all blocks: a number of devices has to divide the heads of each.
        # gcd(0, n) is n.
        heads = gcd(*(member.heads or 0 for member in members)) or None
        # Blocks may differ in a detail, such as the first without a norm before it.
        [(reason, _)] = Counter(member.reason for member in members).most_common(1)
        # Optional: where a mesh's size does not divide the weight, it stays whole, as
        # with a published plan.
        rules.append(Rule(pattern, first.spec, heads, optional=True, reason=reason))
    return rules
