"""TPC007: heads of attention that the mesh does not divide."""

from collections.abc import Iterator
from math import gcd

from tpuport.topology.advice import heads
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.gathered import gathered, in_words
from tpuport.topology.advice.placement import MIB, held
from tpuport.topology.advice.remedies import alone_on, inputs_over_dp
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.traffic import sent
from tpuport.topology.advice.wording import several, size
from tpuport.topology.advice.work import batch


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
        kept = [f"{several(len(names), 'weight')} of attention, {size(weights)}"] if weights else []
        kept += [f"{size(cache)} of the cache"] if cache else []
        yield Hit(
            f"{count} {which} heads cannot be shared out whole over {one.axis}={one.parts}: "
            f"each device holds {' and '.join(kept)} that it would hold 1/{one.parts} of{_exchanged(evidence)}",
            remedy(evidence, one),
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


def _exchanged(evidence: Evidence) -> str:
    """Collectives of keys and values, where weights are divided all the same."""
    found = gathered(evidence)
    made = (*found.whole, *found.new)
    return f"; {in_words(made)} a step put keys and values together ({size(sent(made))})" if made else ""


def remedy(evidence: Evidence, one: heads.Undivided) -> str:
    """A mesh whose tp divides the heads, if its devices can hold the weights and the cache."""
    fitting = gcd(one.query, one.kv, one.parts)
    rest = evidence.mesh.size // fitting
    whole = "the key/value heads may as well stay whole" if one.query % one.parts == 0 else ""
    alone = alone_on(evidence, dp=rest, tp=fitting)
    if alone > evidence.report.memory.capacity:
        return _too_much(evidence, one, fitting, alone)
    smaller = f"tp={fitting} divides both: tpuport.create_mesh(dp={rest}, tp={fitting}) (--dp {rest} --tp {fitting})"
    rows = batch(evidence)
    if rest > 1 and (rows is None or rows % rest):
        smaller += f" and a batch of a multiple of {rest}"
    if rest > 1 and evidence.report.task == "forward":
        smaller += f", with the batch over dp: {inputs_over_dp()}"
    if rest > 1 and evidence.report.task != "decode":  # which has one token a row to share out
        smaller += f", or --sp {rest} --tp {fitting} for long prompts"
    return f"{smaller}; with one row or short caches {whole}" if whole else smaller


def _too_much(evidence: Evidence, one: heads.Undivided, fitting: int, alone: int) -> str:
    """What is left where a smaller tp divides the heads, and weights and cache are too large for it."""
    have = evidence.report.memory.capacity
    known = f"tp={fitting} would divide both, but weights and cache alone are {size(alone)} a device there"
    known += f", of {size(have)}"
    if one.query % one.parts:
        return f"{known}: take chips with more memory (--list-topologies), or a model of other heads"
    cache = ", with a shorter cache (--max-cache-len) or a smaller batch (--batch)" if evidence.cache else ""
    return (
        f"{known}: keep {one.axis}={one.parts} and the key/value heads whole{cache}, or take chips with more memory "
        "(--list-topologies)"
    )


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
