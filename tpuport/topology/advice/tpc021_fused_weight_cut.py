"""TPC021: several projections in one weight, divided so that each is cut."""

from collections import defaultdict
from collections.abc import Iterator

from tpuport.base.mappings import group_by
from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    describe_collectives,
    format_bytes,
)
from tpuport.topology.advice.data_movement import (
    ProductCollective,
    sent_bytes,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import layer_pattern, sharding_axes
from tpuport.topology.compile_report import Source


def check(evidence: Evidence) -> Iterator[Hit]:
    """Moves between a product with a weight and the parts of it; those that the same
    lines take apart are one.
    """
    by_weight = group_by(
        evidence.split_products, lambda split: layer_pattern(split.weight)
    )
    # Layers of one class share their lines, and their weights have different names.
    by_lines: dict[frozenset[Source | None], list[ProductCollective]] = defaultdict(
        list
    )
    for splits in by_weight.values():
        lines = frozenset(
            evidence.compiled.source(split.instruction) for split in splits
        )
        by_lines[lines] += splits
    for splits in by_lines.values():
        yield _describe(evidence, splits)


def _describe(evidence: Evidence, splits: list[ProductCollective]) -> Hit:
    collectives, names = (
        [split.instruction for split in splits],
        {split.weight for split in splits},
    )
    name = splits[0].weight
    others = f" and {count_noun(len(names) - 1, 'other')}" if len(names) > 1 else ""
    parts, axes = (
        evidence.products.fused[name],
        "+".join(sorted(sharding_axes(evidence.weights[name]))),
    )
    divided = (
        f"divided over {axes} as one" if axes else "divided as one by the compiler"
    )
    # Its line is the one to look at first.
    largest = max(splits, key=lambda split: sent_bytes([split.instruction]))
    sent = sent_bytes(collectives)
    return Hit(
        f"{describe_collectives(collectives)} a step ({format_bytes(sent)} on each device) between the product with "
        f"{name}{others} and the {parts} parts it is split into: its outputs are {divided}, so a device has some "
        "outputs of one part and some of another",
        _remedy(evidence, name, parts),
        sent,
        "bytes sent",
        evidence.compiled.source(largest.instruction),
    )


def _remedy(evidence: Evidence, name: str, parts: int) -> str:
    # A parameter may also belong to the model itself.
    owner = name.rpartition(".")[0] or name
    axis = min(
        sharding_axes(evidence.weights[name]) & evidence.model_axes.keys(), default="tp"
    )
    return (
        f"use a Linear layer for each part, sharded over {axis} by its outputs (PartitionSpec({axis!r}, None)). To "
        f"keep the model's code unchanged, replace {owner} by a module of {parts} layers whose forward is "
        "torch.cat([part(x) for part in self.parts], -1): the compiler removes the concatenation, and the layers' "
        "weights are the rows in order. For heads, a view as [.., heads, 3, head_dim] with the rows in that order "
        "works too; replicating the weight, PartitionSpec(), does not help if the next weight is divided"
    )


RULE = AdviceRule(
    id="TPC021",
    name="fused-weight-cut",
    summary="several projections fused into one weight, whose sharding cuts across them",
    why="""Fused weights stack the rows of query, key and value, or of gate and up. With such a weight divided by its
outputs over two devices, the first has all of the gate and the second all of the up projection, and their results have
to be exchanged before they can be multiplied. A two-layer Phi-3 ran 29 collectives a step on four devices, and 7 with a
separate layer for each part. Replicating the weight instead increased its size on each device without removing any
collective, because the next weight divides what it reads.""",
    measured="""All-gathers, all-to-alls and permutations in the compiled program that come from splitting an array,
and whose operand is computed with a weight whose outputs the traced program splits into two or more parts.""",
    before="""class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(512, 2048, bias=False)   # over tp by its outputs
        self.down = nn.Linear(1024, 512, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


x = torch.empty(256, 512, dtype=torch.bfloat16, device="meta")
rules = ShardingRules({r"gate_up\\.weight": PartitionSpec("tp", None), r"down\\.weight": PartitionSpec(None, "tp")})
compile_for(Gated, {"x": x}, topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16")""",
    after="""class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(512, 1024, bias=False)   # each over tp by its outputs
        self.up = nn.Linear(512, 1024, bias=False)
        self.down = nn.Linear(1024, 512, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


x = torch.empty(256, 512, dtype=torch.bfloat16, device="meta")
rules = ShardingRules({r"(gate|up)\\.weight": PartitionSpec("tp", None), r"down\\.weight": PartitionSpec(None, "tp")})
compile_for(Gated, {"x": x}, topology="v6e:2x2", tp=4, rules=rules, dtype="bfloat16")""",
    check=check,
)
