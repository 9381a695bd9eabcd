"""`infer_plan`: which weights of a model to divide over `tp`, as rules, with the reason for each weight."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from math import gcd
from typing import Any

from jax.sharding import PartitionSpec

from tpuport.errors import PortError
from tpuport.sharding.inference.choosing import Choice, choose
from tpuport.sharding.inference.model_trace import trace_model
from tpuport.sharding.inference.patterns import patterns_of
from tpuport.sharding.inference.program import Program, read_program
from tpuport.sharding.inference.reasons import Reasons
from tpuport.sharding.inference.weight_plan import WeightPlan
from tpuport.sharding.specs import Rule, format_spec
from tpuport.sharding.styles import AXIS


@dataclasses.dataclass(frozen=True)
class InferredPlan:
    """A plan for every weight of a model, and the rules that express it. `str()` is a table."""

    weights: tuple[WeightPlan, ...]
    rules: tuple[Rule, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan in plain lists, dicts, strings and numbers."""
        return {
            "rules": {rule.pattern: list(rule.spec) for rule in self.rules},
            "weights": [
                {
                    **vars(weight),
                    "names": list(weight.names),
                    "shape": list(weight.shape),
                    "spec": list(weight.spec),
                }
                for weight in self.weights
            ],
        }

    def __str__(self) -> str:
        rows = [(rule.pattern, format_spec(rule.spec), rule.reason) for rule in self.rules]
        widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def infer_plan(model: Any, inputs: Any) -> InferredPlan:
    """A tensor-parallel plan from the structure of a model's forward pass.

    Args:
        model: a torch module; its weights may be on the meta device and are not read.
        inputs: of one call, as `trace_model` takes them. Tensors may be on the meta device. Sizes matter little, but
            a sequence should be longer than one token.

    Raises:
        PortError: this is not a torch module.
        CannotTrace: the model's code cannot be traced.
    """
    if not hasattr(model, "named_parameters"):
        raise PortError(
            f"a plan is inferred for a torch module, and this is a {type(model).__name__}",
            fix="pass the model itself; of a pipeline, pass the part to shard, such as pipe.transformer",
        )
    trace = trace_model(model, inputs)
    program = read_program(*trace)
    choice = choose(program)
    reasons = Reasons(program, choice)
    weights = tuple(
        _plan_weight(names, program, choice, reasons.explain(names[0])) for names in _tied_names(model)
    )
    return InferredPlan(weights, tuple(_rules(weights)))


def _tied_names(model: Any) -> list[tuple[str, ...]]:
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [tuple(group) for group in names.values()]


def _plan_weight(names: tuple[str, ...], program: Program, choice: Choice, reason: str) -> WeightPlan:
    shape = program.weights[names[0]].shape
    cut = choice.cuts.get(names[0])
    if cut is None:
        return WeightPlan(names, shape, PartitionSpec(), None, reason)
    entries: list[str | None] = [None] * len(shape)
    entries[cut.dimension] = AXIS
    return WeightPlan(names, shape, PartitionSpec(*entries), cut.units, reason)


def _rules(weights: Iterable[WeightPlan]) -> list[Rule]:
    """A rule for each kind of weight that is divided, and for each matrix that is not."""
    decisions = {name: weight for weight in weights for name in weight.names}
    rules = []
    for pattern, members in patterns_of(decisions).items():
        first = members[0]
        if not any(first.spec) and len(first.shape) < 2:
            continue
        heads = gcd(*(member.heads or 0 for member in members)) or None
        [(reason, _)] = Counter(member.reason for member in members).most_common(1)
        rules.append(Rule(pattern, first.spec, heads, optional=True, reason=reason))
    return rules
