"""TPC015: more FLOPs than the model has, for no reason that another rule knows."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice import (
    tpc002_replicated_weight,
    tpc007_heads_not_divided,
    tpc011_vocabulary_not_sharded,
    tpc014_batch_not_divided,
    tpc017_unused_axis,
    work,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import replicated
from tpuport.topology.advice.remedies import rules_for
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several
from tpuport.topology.advice.wording import work as flops

_LOOK: Final = (
    "look for work on whole arrays: an activation that is replicated where its weight is, masked scores that are "
    "computed all the same, or something that each layer computes again and could be given"
)
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
    more, remedy = _replicated(evidence) or ("", _LOOK)
    yield Hit(
        f"a device does {flops(costs.product_flops)} in products, {found:.2f} times its share of the model's "
        f"{flops(costs.model_flops)}{more}",
        remedy,
        work.excess(evidence),
        "flops",
    )


def _replicated(evidence: Evidence) -> tuple[str, str] | None:
    """What is said, and the remedy, where products with weights that are whole on every device are half of it."""
    for axis, parts in evidence.model_axes.items():
        whole = set(replicated(evidence, axis))
        made: dict[str, float] = {}
        for one in evidence.products.made:
            if one.weight in whole:
                made[one.weight] = made.get(one.weight, 0.0) + one.flops * (parts - 1) / evidence.mesh.size
        if made and 2 * sum(made.values()) >= work.excess(evidence):
            largest = max(made, key=lambda name: made[name])
            said = (
                f"; {flops(sum(made.values()))} of that are products with {several(len(made), 'weight')} that "
                f"{'is' if len(made) == 1 else 'are'} whole on each of the {parts} devices of {axis}, such as {largest}"
            )
            return said, rules_for(evidence.weights, made, axis, parts, override=True)
    return None


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
