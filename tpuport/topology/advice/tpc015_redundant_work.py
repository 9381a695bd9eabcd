"""TPC015: more FLOPs than the model has, for no reason that another rule knows."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tpuport.base.plurals import count_noun, is_or_are
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_flops
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import Spec, without_fused, write_rules
from tpuport.topology.advice.repeated_work import MOST_RATIO, excess_flops, work_ratio
from tpuport.topology.advice.rules_trial import try_rules
from tpuport.topology.advice.weight_placement import replicated_weights

_LOOK: Final = (
    "look for work on whole arrays: an activation that is replicated along with its weight, scores that are computed "
    "although they are masked, or something that each layer recomputes and could be passed in"
)


class _Cause(NamedTuple):
    """What the message says of the cause, and the remedy."""

    description: str = ""
    remedy: str = _LOOK
    rules: Mapping[str, Spec] = MappingProxyType({})


def check(evidence: Evidence) -> Iterator[Hit]:
    """The compiler's count against the model's."""
    ratio, costs = work_ratio(evidence), evidence.costs
    if ratio <= MOST_RATIO:
        return
    cause = _find_cause(evidence)
    yield Hit(
        f"a device does {format_flops(costs.product_flops)} of products, {ratio:.2f} times its share of the model, "
        f"which is {format_flops(costs.model_flops)}{cause.description}",
        cause.remedy,
        excess_flops(evidence),
        "flops",
        # All of these name what is whole, and the excess follows from it.
        explained_by=frozenset(("TPC002", "TPC007", "TPC011", "TPC014", "TPC017")),
        rules=cause.rules,
    )


def _find_cause(evidence: Evidence) -> _Cause:
    """Products with weights that are whole on every device, if they are half of the
    excess.
    """
    whole = set(replicated_weights(evidence))
    products = [product for product in evidence.products.all if product.weight in whole]
    for axis, parts in evidence.model_axes.items():
        excess: dict[str, float] = defaultdict(float)
        for product in products:
            # All but one of the devices along the axis repeat what the first does.
            excess[product.weight] += product.flops * (parts - 1) / evidence.mesh.size
        total = sum(excess.values())
        # The excess is a GFLOP at least: see `check`.
        if 2 * total >= excess_flops(evidence):
            largest = max(excess, key=lambda name: excess[name])
            description = (
                f"; {format_flops(total)} of that are products with {count_noun(len(excess), 'weight')} that "
                f"{is_or_are(len(excess))} whole on each of the {parts} devices of {axis}, such as {largest}"
            )
            names = without_fused(evidence, excess)
            trial = try_rules(evidence, names, axis, parts)
            if trial.is_worse:
                return _Cause(
                    description,
                    f"{_LOOK}; {trial.text}, so that they may as well stay whole",
                )
            text, rules = write_rules(
                evidence.weights, names, axis, parts, override=True
            )
            if trial.is_inferred:
                text, rules = (
                    "rules=tpuport.ShardingRules.infer(model, inputs)",
                    dict(trial.rules),
                )
            return _Cause(description, f"{text}; {trial.text}", rules)
    return _Cause()


RULE = AdviceRule(
    id="TPC015",
    name="redundant-work",
    summary="devices that together do more work than the model requires",
    why="""Work that every device repeats is paid for once per device: a product with a replicated weight, or an
activation that stays whole because nothing says how to divide it. The repetition does not show in memory, and the
results are correct.""",
    measured="""A device's FLOPs in matrix products, convolutions and kernels, compared with its share of the products,
convolutions and attention that were traced: more than 1.25 times as many, and at least 1 GFLOP more. The rule stays
silent if TPC002, TPC007, TPC011, TPC014 or TPC017 explains the excess.""",
    before="""class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(256, 256, bias=False)
        self.up = nn.Linear(256, 8192, bias=False)

    def forward(self, x):
        return self.up(self.small(x).relu().sum(0))


x = torch.empty(1 << 16, 256, dtype=torch.bfloat16, device="meta")
rules = ShardingRules({r"up\\.weight": PartitionSpec("tp", None)})   # small.weight is forgotten
compile_for(Pooled, {"x": x}, topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16")""",
    after="""class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(256, 256, bias=False)
        self.up = nn.Linear(256, 8192, bias=False)

    def forward(self, x):
        return self.up(self.small(x).relu().sum(0))


x = torch.empty(1 << 16, 256, dtype=torch.bfloat16, device="meta")
rules = ShardingRules({r"(small|up)\\.weight": PartitionSpec("tp", None)})
compile_for(Pooled, {"x": x}, topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16")""",
    check=check,
)
