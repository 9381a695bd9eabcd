"""TPC019: a cache whose keys and values are put together in each step."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    describe_collectives,
    format_bytes,
)
from tpuport.topology.advice.cache_inputs import CacheInputs
from tpuport.topology.advice.data_movement import (
    CacheCollectives,
    count_executions,
    sent_bytes,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import propose_even_heads
from tpuport.topology.advice.weight_placement import SMALL, undivided_heads

# New keys and new values of one layer. Their bytes are few, and a step waits for each
# collective all the same.
_LEAST_COLLECTIVES: Final = 2


def check(evidence: Evidence) -> Iterator[Hit]:
    """Collectives of what a cache holds, or of what is written into it."""
    collectives = _without_split_products(evidence)
    is_large = sent_bytes(collectives.whole) >= SMALL
    if not is_large and count_executions(collectives.all) < _LEAST_COLLECTIVES:
        return
    # Its line is the one to look at first.
    largest = max(collectives.all, key=lambda collective: sent_bytes([collective]))
    sent = sent_bytes(collectives.all)
    yield Hit(
        f"{_describe(collectives)} ({format_bytes(sent)} on each device): {_describe_sharding(evidence)}, but the step "
        "needs it divided differently",
        _remedy(evidence),
        sent,
        "bytes sent",
        evidence.compiled.source(largest),
        # It says why, and its mesh ends these collectives too.
        explained_by=frozenset(("TPC007",)),
    )


def _without_split_products(evidence: Evidence) -> CacheCollectives:
    """Without those that take a fused projection apart, of which TPC021 says more."""
    collectives = evidence.cache_collectives
    if not collectives.new:
        return collectives
    others = {split.instruction for split in evidence.split_products}
    return collectives._replace(
        new=tuple(move for move in collectives.new if move not in others)
    )


def _describe(collectives: CacheCollectives) -> str:
    parts = []
    if collectives.whole:
        parts.append(f"{describe_collectives(collectives.whole)} a step of the cache")
    if collectives.new:
        new = describe_collectives(collectives.new)
        parts.append(f"{new} a step of new keys and values on their way into the cache")
    return ", and ".join(parts)


def _describe_sharding(evidence: Evidence) -> str:
    inputs, first = CacheInputs(evidence), evidence.overwritten[0]
    share, name = inputs.input_share(first), inputs.joint_name(evidence.overwritten)
    sharding = "whole on every device"
    if share != first.shape:
        sharding = f"as {inputs.write_spec(first.shape, share)}"
    return f"{name} {list(first.shape)} given {sharding}"


def _remedy(evidence: Evidence) -> str:
    for heads in undivided_heads(evidence):
        if heads.kv % heads.parts:
            return propose_even_heads(evidence, heads)
    weights = "keep whole heads of keys and values on each device, with PartitionSpec('tp', None) for their weights"
    if evidence.report.task != "forward":
        return f"{weights} (--rules FILE); the model's own plan is ShardingRules.from_model(model)"
    return (
        f"{weights}; and place the cache where attention uses it, as tpuport.generate does: for [B, K, T, D], "
        "jax.device_put(cache, NamedSharding(mesh, PartitionSpec('dp', 'tp'))) (in compile_for: jax.ShapeDtypeStruct "
        "with that sharding)"
    )


RULE = AdviceRule(
    id="TPC019",
    name="cache-gathered",
    summary="keys and values that devices exchange in each step",
    why="""Attention is computed where its heads are: a device with some of the query heads needs the same heads of the
cache, and no others. If the cache is divided along another dimension, or a weight is divided in the middle of a head,
devices have to exchange keys and values: the new ones of each layer on their way into the cache, or the whole cache,
which outweighs everything else that a decode step sends.""",
    measured="""All-gathers, all-to-alls and permutations in the compiled program that read a cache (an argument that
comes back partly overwritten, followed through loops and fusions), from 1 MiB a step; or that are between the product
that computes new keys or values and the update that stores them, from 2 a step. The rule stays silent if TPC007
explains them. TPC013 covers gathered weights, and TPC021 covers fused projections.""",
    before="""mesh = tpuport.create_mesh(tp=4, devices=described("v6e:2x2").devices)
over_positions = NamedSharding(mesh, PartitionSpec(None, None, "tp"))
cache = jax.ShapeDtypeStruct((4, 8, 2048, 64), jnp.bfloat16, sharding=over_positions)
x = torch.empty(4, 1, 512, dtype=torch.bfloat16, device="meta")
rules = ShardingRules({r"[qkv]\\.weight": PartitionSpec("tp", None), r"o\\.weight": PartitionSpec(None, "tp")})
compile_for(
    Step, {"x": x, "keys": cache, "values": cache, "position": torch.tensor([7])},
    topology="v6e:2x2", mesh=mesh, rules=rules, dtype="bfloat16",
)""",
    after="""mesh = tpuport.create_mesh(tp=4, devices=described("v6e:2x2").devices)
whole_heads = NamedSharding(mesh, PartitionSpec("dp", "tp"))
cache = jax.ShapeDtypeStruct((4, 8, 2048, 64), jnp.bfloat16, sharding=whole_heads)
x = torch.empty(4, 1, 512, dtype=torch.bfloat16, device="meta")
rules = ShardingRules({r"[qkv]\\.weight": PartitionSpec("tp", None), r"o\\.weight": PartitionSpec(None, "tp")})
compile_for(
    Step, {"x": x, "keys": cache, "values": cache, "position": torch.tensor([7])},
    topology="v6e:2x2", mesh=mesh, rules=rules, dtype="bfloat16",
)""",
    check=check,
)
