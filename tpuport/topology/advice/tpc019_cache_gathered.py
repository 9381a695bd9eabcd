"""TPC019: a cache whose keys and values are put together in each step."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice import heads, tpc007_heads_not_divided, tpc021_fused_weight_cut
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.gathered import Gathered, gathered, in_words
from tpuport.topology.advice.kept import called, inputs_of, share_given, spec_of_share
from tpuport.topology.advice.placement import SMALL
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.traffic import sent, times
from tpuport.topology.advice.wording import size

# New keys and new values of one layer. Their bytes are few, and a step waits for each collective all the same.
_FEW: Final = 2


def check(evidence: Evidence) -> Iterator[Hit]:
    """Collectives of what a cache holds, or of what is written into it."""
    found = _without_cut(evidence, gathered(evidence))
    if sent(found.whole) < SMALL and times((*found.whole, *found.new)) < _FEW:
        return
    if any(tpc007_heads_not_divided.check(evidence)):
        return  # says why, and its mesh ends these collectives too
    made = (*found.whole, *found.new)
    largest = max(made, key=lambda one: sent([one]))
    yield Hit(
        f"{_what(found)} ({size(sent(made))} on each device): {_place(evidence)}, which is not how the step uses it",
        _remedy(evidence),
        sent(made),
        "bytes sent",
        None if evidence.program is None else evidence.program.source(largest),
    )


def _without_cut(evidence: Evidence, found: Gathered) -> Gathered:
    """Without those that take a fused projection apart, of which another rule says more."""
    others = {id(one) for one, _ in tpc021_fused_weight_cut.cut(evidence)} if found.new else set()
    return found._replace(new=tuple(one for one in found.new if id(one) not in others))


def _what(found: Gathered) -> str:
    parts = [f"{in_words(found.whole)} a step of the cache"] if found.whole else []
    if found.new:
        parts.append(f"{in_words(found.new)} a step of new keys and values on their way into the cache")
    return ", and ".join(parts)


def _place(evidence: Evidence) -> str:
    one = evidence.returned[0]
    share, name = share_given(evidence, one), called(inputs_of(evidence), evidence.returned)
    where = (
        "whole on every device" if share == one.shape else f"as {spec_of_share(evidence, one.shape, share)}"
    )
    return f"{name} {list(one.shape)} given {where}"


def _remedy(evidence: Evidence) -> str:
    undivided = next((one for one in heads.undivided(evidence) if one.kv % one.parts), None)
    if undivided is not None:
        return tpc007_heads_not_divided.remedy(evidence, undivided)
    weights = "whole heads of keys and values on each device: rules with PartitionSpec('tp', None) for their weights"
    if evidence.report.task != "forward":
        return f"{weights} (--rules FILE); what the model's own plan says is ShardingRules.from_model(model)"
    return (
        f"{weights}; and the cache where attention uses it, as tpuport.generate keeps it: for [B, K, T, D] "
        "jax.device_put(cache, NamedSharding(mesh, PartitionSpec('dp', 'tp'))) (in compile_for: jax.ShapeDtypeStruct "
        "with that sharding)"
    )


RULE = Rule(
    id="TPC019",
    name="cache-gathered",
    summary="keys and values that devices send each other in each step",
    why="""Attention is done where heads are: a device that has some heads of the queries needs those heads of the
cache and no others. A cache that is divided along another dimension, or weights that cut through a head, make the
devices exchange keys and values: the new ones of each layer on their way into the cache, or all of the cache, which
is more than anything else that a decode step sends.""",
    measured="""All-gathers, all-to-alls and permutations in the compiled program whose operands are a cache (an
argument that comes back with a part overwritten, followed through loops and fusions), from 1 MiB a step; or that stand
between the product that makes new keys or values and the writing of them, from 2 a step. Where TPC007 says why, it
is silent; weights that are gathered have TPC013, and a fused projection that is cut has TPC021.""",
    before="""cache = jax.ShapeDtypeStruct((4, 8, 2048, 64), jnp.bfloat16,
    sharding=NamedSharding(mesh, PartitionSpec(None, None, None, "tp")))   # through the heads""",
    after="""cache = jax.ShapeDtypeStruct((4, 8, 2048, 64), jnp.bfloat16,
    sharding=NamedSharding(mesh, PartitionSpec("dp", "tp")))               # rows, and whole heads""",
    check=check,
)
