"""TPC015: more FLOPs than the model has, for no reason that another rule knows."""

from collections.abc import Iterator

from tpuport.topology.advice import (
    tpc002_replicated_weight,
    tpc007_heads_not_divided,
    tpc011_vocabulary_not_sharded,
    tpc014_batch_not_divided,
    tpc017_unused_axis,
    work,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import work as flops

_CAUSES = (
    tpc002_replicated_weight, tpc007_heads_not_divided, tpc011_vocabulary_not_sharded, tpc014_batch_not_divided,
    tpc017_unused_axis,
)  # fmt: skip


def check(evidence: Evidence) -> Iterator[Hit]:
    """The compiler's count against the model's."""
    found, costs = work.ratio(evidence), evidence.report.costs
    if found is None or costs is None or found <= work.MORE:
        return
    if any(hit for cause in _CAUSES for hit in cause.RULE.check(evidence)):
        return
    yield Hit(
        f"a device does {flops(costs.product_flops)} in products, {found:.2f} times its share of the model's "
        f"{flops(costs.model_flops)}",
        "look for work on whole arrays: an activation that is replicated where its weight is, masked scores that are "
        "computed all the same, or something that each layer computes again and could be given",
        work.excess(evidence),
        "flops",
    )


RULE = Rule(
    id="TPC015",
    name="redundant-work",
    summary="devices that together do more than the model has to do",
    why="""What every device computes for itself is paid for once a device: a product with a replicated weight, or an
activation that is whole because nothing says how to share it out. It does not show in memory, and the program is
correct.""",
    measured="""FLOPs of a device in matrix products, convolutions and kernels, over its share of the products,
convolutions and attention that were traced: more than 1.25, and 1 GFLOP more. Where TPC002, TPC007, TPC011, TPC014
or TPC017 say why, it is silent.""",
    before="""rules = ShardingRules({r".*up\\.weight": PartitionSpec("tp", None)})   # down.weight is forgotten""",
    after="""rules = ShardingRules({
    r".*up\\.weight": PartitionSpec("tp", None), r".*down\\.weight": PartitionSpec(None, "tp"),
})""",
    check=check,
)
