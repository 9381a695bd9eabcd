"""TPC007: heads of attention that the mesh does not divide."""

from collections.abc import Iterator
from math import gcd

from tpuport.topology.advice import heads
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import MIB, held
from tpuport.topology.advice.remedies import inputs_over_dp
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several, size


def check(evidence: Evidence) -> Iterator[Hit]:
    """Each axis that does not divide the query heads, or the key/value heads."""
    names = heads.kept_whole(evidence)
    for one in heads.undivided(evidence):
        rest = 1 - 1 / one.parts
        weights = sum(held(evidence.weights[name]) for name in names)
        cache = _cache_held_whole(evidence, one) if one.kv % one.parts else 0
        if weights + cache < MIB:
            continue
        which, count = ("query", one.query) if one.query % one.parts else ("key/value", one.kv)
        fitting = gcd(one.query, one.kv, one.parts)
        kept = [f"{several(len(names), 'weight')} of attention, {size(weights)}"] if weights else []
        kept += [f"{size(cache)} of the cache"] if cache else []
        yield Hit(
            f"{count} {which} heads cannot be shared out whole over {one.axis}={one.parts}: "
            f"each device holds {' and '.join(kept)} that it would hold 1/{one.parts} of",
            _remedy(evidence, one, fitting),
            (weights + cache) * rest,
        )


def _cache_held_whole(evidence: Evidence, one: heads.Undivided) -> int:
    """Bytes on a device of caches of these heads that the axis does not divide."""
    found = 0
    for array in evidence.cache:
        spec = getattr(array.sharding, "spec", ())
        if one.kv in array.shape and one.axis not in str(spec):
            found += held(array)
    return found


def _remedy(evidence: Evidence, one: heads.Undivided, fitting: int) -> str:
    rest = evidence.mesh.size // fitting
    rows = f", with the batch over dp: {inputs_over_dp()}" if evidence.report.task == "forward" else ""
    smaller = (
        f"tp={fitting} divides both: tpuport.create_mesh(dp={rest}, tp={fitting}) (--dp {rest} --tp {fitting}){rows}, "
        f"or --sp {rest} --tp {fitting} for long prompts"
    )
    if one.query % one.parts:
        return smaller
    return f"{smaller}; with one row or short caches the key/value heads may as well stay whole"


RULE = Rule(
    id="TPC007",
    name="heads-not-divided",
    summary="attention heads that the mesh does not divide",
    why="""An axis that cuts through a head costs collectives inside of attention, so tpuport's rules keep such
weights whole. With key/value heads that is their projections and, more, the cache: each device reads all of it for
each token. With query heads it is all of attention.""",
    measured="""Heads of the traced attention calls (and key/value heads of the config) against each axis of the
mesh, where the weights and caches that stay whole are 1 MiB or more.""",
    before="""mesh = tpuport.create_mesh(tp=8)          # a model with 2 key/value heads""",
    after="""mesh = tpuport.create_mesh(dp=4, tp=2)""",
    check=check,
)
