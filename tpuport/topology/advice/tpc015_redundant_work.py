"""TPC015: more FLOPs than the model has, for no reason that another rule knows."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, are, format_count, format_flops
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import write_rules
from tpuport.topology.advice.repeated_work import MOST_RATIO, excess_flops, work_ratio
from tpuport.topology.advice.weight_placement import replicated_weights

_LOOK: Final = (
    "look for work on whole arrays: an activation that is replicated where its weight is, masked scores that are "
    "computed all the same, or something that each layer computes again and could be given"
)


class _Cause(NamedTuple):
    """What the message says of the cause, and the remedy."""

    description: str = ""
    remedy: str = _LOOK


def check(evidence: Evidence) -> Iterator[Hit]:
    """The compiler's count against the model's."""
    ratio, costs = work_ratio(evidence), evidence.costs
    if ratio is None or ratio <= MOST_RATIO:
        return
    cause = _find_cause(evidence)
    yield Hit(
        f"a device does {format_flops(costs.product_flops)} in products, {ratio:.2f} times its share of the model's "
        f"{format_flops(costs.model_flops)}{cause.description}",
        cause.remedy,
        excess_flops(evidence),
        "flops",
        explained_by=frozenset(("TPC002", "TPC007", "TPC011", "TPC014", "TPC017")),
    )


def _find_cause(evidence: Evidence) -> _Cause:
    """Products with weights that are whole on every device, if they are half of the excess."""
    for axis, parts in evidence.model_axes.items():
        whole = set(replicated_weights(evidence, axis))
        excess: dict[str, float] = {}
        for product in evidence.products.all:
            # All but one of the devices along the axis repeat what the first does.
            if product.weight in whole:
                repeated = product.flops * (parts - 1) / evidence.mesh.size
                excess[product.weight] = excess.get(product.weight, 0.0) + repeated
        total = sum(excess.values())
        if excess and 2 * total >= excess_flops(evidence):
            largest = max(excess, key=lambda name: excess[name])
            return _Cause(
                f"; {format_flops(total)} of that are products with {format_count(len(excess), 'weight')} that "
                f"{are(excess)} whole on each of the {parts} devices of {axis}, such as {largest}",
                write_rules(evidence.weights, excess, axis, parts, override=True),
            )
    return _Cause()


RULE = AdviceRule(
    id="TPC015",
    name="redundant-work",
    summary="devices that together do more than the model has to do",
    why="""What every device computes for itself is paid for once a device: a product with a replicated weight, or an
activation that is whole because nothing says how to divide it. It does not show in memory, and the program is
correct.""",
    measured="""FLOPs of a device in matrix products, convolutions and kernels, over its share of the products,
convolutions and attention that were traced: more than 1.25, and 1 GFLOP more. If TPC002, TPC007, TPC011, TPC014 or
TPC017 say why, it is silent.""",
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
