"""TPC021: several projections in one weight, divided so that each is cut."""

from collections.abc import Iterator

from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    describe_collectives,
    format_bytes,
    format_count,
)
from tpuport.topology.advice.data_movement import ProductCollective, sent_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import layer_pattern, sharding_axes
from tpuport.topology.compile_report import Source


def check(evidence: Evidence) -> Iterator[Hit]:
    """Moves between a product with a weight and the parts of it; those that the same lines take apart are one."""
    by_weight: dict[str, list[ProductCollective]] = {}
    for split in evidence.split_products:
        by_weight.setdefault(layer_pattern(split.weight), []).append(split)
    # Layers of one class share their lines, and their weights have different names.
    by_lines: dict[frozenset[Source | None], list[ProductCollective]] = {}
    for splits in by_weight.values():
        lines = frozenset(evidence.compiled.source(split.instruction) for split in splits)
        by_lines.setdefault(lines, []).extend(splits)
    for splits in by_lines.values():
        yield _describe(evidence, splits)


def _describe(evidence: Evidence, splits: list[ProductCollective]) -> Hit:
    collectives, names = [split.instruction for split in splits], {split.weight for split in splits}
    name = splits[0].weight
    others = f" and {format_count(len(names) - 1, 'other')}" if len(names) > 1 else ""
    parts, axes = evidence.products.fused[name], "+".join(sorted(sharding_axes(evidence.weights[name])))
    divided = f"divided over {axes} as one" if axes else "divided as one by the compiler"
    largest = max(splits, key=lambda split: sent_bytes([split.instruction]))
    sent = sent_bytes(collectives)
    return Hit(
        f"{describe_collectives(collectives)} a step ({format_bytes(sent)} on each device) between the product with "
        f"{name}{others} and the {parts} parts that are taken of it, as its outputs are {divided}, and a device has "
        "some of one part and others of another",
        _remedy(evidence, name, parts),
        sent,
        "bytes sent",
        evidence.compiled.source(largest.instruction),
    )


def _remedy(evidence: Evidence, name: str, parts: int) -> str:
    # A parameter may also belong to the model itself.
    owner = name.rpartition(".")[0] or name
    axes = sorted(sharding_axes(evidence.weights[name]) & evidence.model_axes.keys())
    axis = axes[0] if axes else "tp"
    return (
        f"a Linear layer for each part, over {axis} by its outputs (PartitionSpec({axis!r}, None)). If the model's "
        f"code is to stay unchanged, put a module of {parts} in the place of {owner} whose forward is "
        "torch.cat([part(x) for part in self.parts], -1): the compiler undoes that, and the parts' weights are the "
        "rows in their order. For heads, a view as [.., heads, 3, head_dim] with the rows in that order does it too; "
        "the weight whole, PartitionSpec(), does not if what follows is divided"
    )


RULE = AdviceRule(
    id="TPC021",
    name="fused-weight-cut",
    summary="several projections in one weight, divided so that each is cut",
    why="""The rows of query, key and value, or of gate and up, follow each other in one weight. Divided by its
outputs, the first of two devices has all of the gate and the second all of the up, and what they compute has to be sent
before the one is multiplied with the other. A Phi-3 of two layers had 29 collectives a step on four devices, and has 7
with a layer for each part. With the weight left whole there was more of it and the collectives were the same, since the
weight that follows divides what it reads.""",
    measured="""All-gathers, all-to-alls and permutations in the compiled program that were made for taking an array
apart, and whose operand comes from a product with a weight of whose outputs the traced program takes two parts or
more.""",
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
