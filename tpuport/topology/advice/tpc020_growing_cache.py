"""TPC020: a cache that comes back longer than it was given."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.kept import called, inputs_of, share_bytes, share_given
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several

# Keys and values. One array to which something was added may be anything.
_PAIR: Final = 2


def check(evidence: Evidence) -> Iterator[Hit]:
    """Arguments that come back with something at their end."""
    grown = [one for one in evidence.returned if one.grown]
    if len(grown) < _PAIR:
        return
    first = grown[0]
    held = sum(share_bytes(one, share_given(evidence, one)) for one in grown)
    yield Hit(
        f"{several(len(grown), 'array')} of {called(inputs_of(evidence), grown)} come back longer by {first.grown} "
        f"than they were given, as {list(first.shape)} does: the next call has other shapes, so each call is traced "
        "and compiled again, and copies all of them",
        "a cache of fixed length that is written in place: transformers.StaticCache(config=model.config, "
        "max_cache_len=...), which tpuport.compile donates, or keys.index_copy(2, position, new); or "
        "tpuport.generate, which does all of it",
        2 * held,
    )


RULE = Rule(
    id="TPC020",
    name="growing-cache",
    summary="a cache that comes back longer than it was given, so that each step is another program",
    why="""A compiled program has fixed shapes. A cache to which each step appends a position has another shape in the
next step, and a compilation of seconds or minutes takes the place of a step of milliseconds; and what is put together
is copied, all of it, for each token. It is how transformers' DynamicCache and many a cache of one's own work.""",
    measured="""Two arguments of the traced program or more that come back concatenated with something along one
dimension, and not otherwise changed.""",
    before="""keys = torch.cat([past_keys, new_keys], dim=2)""",
    after="""keys = past_keys.index_copy(2, position, new_keys)   # position: a tensor [1]; the rest is masked""",
    check=check,
)
