"""TPC007: heads of attention that the mesh does not divide."""

from collections.abc import Iterator

from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    describe_collectives,
    format_bytes,
)
from tpuport.topology.advice.data_movement import sent_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import propose_even_heads
from tpuport.topology.advice.weight_placement import (
    MIB,
    UndividedHeads,
    device_bytes,
    device_weight_bytes,
    sharding_axes,
    undivided_heads,
    weights_of_undivided_heads,
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """Each axis that does not divide the query heads, or the key/value heads."""
    names = weights_of_undivided_heads(evidence)
    weights = device_weight_bytes(evidence, names)
    for heads in undivided_heads(evidence):
        cache = _undivided_cache_bytes(evidence, heads)
        # Less is read in a microsecond.
        if weights + cache < MIB:
            continue
        kind, count = "key/value", heads.kv
        # Query heads that do not divide cost all of attention, so that they are named
        # first.
        if heads.query % heads.parts:
            kind, count = "query", heads.query
        whole = {
            f"{count_noun(len(names), 'weight')} of attention, {format_bytes(weights)}": weights,
            f"{format_bytes(cache)} of the cache": cache,
        }
        extra = " and ".join(text for text, nbytes in whole.items() if nbytes)
        yield Hit(
            f"{count} {kind} heads cannot be divided over {heads.axis}={heads.parts}: each device holds {extra} "
            f"that it would hold 1/{heads.parts} of{_exchanged(evidence)}",
            propose_even_heads(evidence, heads),
            (weights + cache) * (1 - 1 / heads.parts),
        )


def _undivided_cache_bytes(evidence: Evidence, heads: UndividedHeads) -> int:
    """Bytes on a device of caches of these heads that the axis does not divide."""
    if heads.kv % heads.parts == 0:
        return 0
    return sum(
        device_bytes(array)
        for array in evidence.cache
        if heads.kv in array.shape and heads.axis not in sharding_axes(array)
    )


def _exchanged(evidence: Evidence) -> str:
    """Collectives of keys and values, if weights are divided through heads all the
    same.
    """
    # Rules of the user's own may divide such weights, which tpuport's leave whole.
    collectives = evidence.cache_collectives.all
    if not collectives:
        return ""
    sent = format_bytes(sent_bytes(collectives))
    return f"; {describe_collectives(collectives)} a step put keys and values together ({sent})"


RULE = AdviceRule(
    id="TPC007",
    name="heads-not-divided",
    summary="attention heads that the mesh does not divide",
    why="""Splitting a head across devices would cost collectives inside attention, so tpuport's rules keep such
weights whole. For key/value heads that means their projections and, worse, the cache: each device reads all of it for
every token. For query heads it means all of attention.""",
    measured="""The number of heads in the traced attention calls (and of key/value heads in the config) against the
size of each mesh axis, if the weights and caches that stay whole amount to at least 1 MiB.""",
    before="""grouped = functools.partial(llama, num_key_value_heads=2)
compile_for(grouped, Decode(batch=2, max_cache_len=1024), topology="v6e:2x2", tp=4, dtype="bfloat16")""",
    after="""grouped = functools.partial(llama, num_key_value_heads=2)
compile_for(grouped, Decode(batch=2, max_cache_len=1024), topology="v6e:2x2", dp=2, tp=2, dtype="bfloat16")""",
    check=check,
)
