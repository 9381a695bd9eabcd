"""TPC020: a cache that comes back longer than it was given."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_count
from tpuport.topology.advice.cache_inputs import CacheInputs
from tpuport.topology.advice.evidence import Evidence

# Keys and values. One array to which something was added may be anything.
_PAIR: Final = 2


def check(evidence: Evidence) -> Iterator[Hit]:
    """Arguments that come back with something at their end."""
    grown = [array for array in evidence.overwritten if array.growth]
    # A single array that grows may be anything, such as the tokens so far.
    if len(grown) < _PAIR:
        return
    inputs, first = CacheInputs(evidence), grown[0]
    yield Hit(
        f"{format_count(len(grown), 'array')} of {inputs.joint_name(grown)} come back longer by {first.growth} than "
        f"they were given, as {list(first.shape)} does: the next call has other shapes, so each call is traced and "
        "compiled again, and copies all of them",
        "a cache of fixed length that is written in place: transformers.StaticCache(config=model.config, "
        "max_cache_len=...), which tpuport.compile donates, or keys.index_copy(2, position, new); or "
        "tpuport.generate, which does all of it",
        2 * inputs.input_bytes(grown),
    )


RULE = AdviceRule(
    id="TPC020",
    name="growing-cache",
    summary="a cache that comes back longer than it was given, so that each step is another program",
    why="""A compiled program has fixed shapes. A cache to which each step appends a position has another shape in the
next step, and a compilation of seconds or minutes takes the place of a step of milliseconds; and what is put together
is copied, all of it, for each token. transformers' DynamicCache works this way, and so do many caches that a model
brings along.""",
    measured="""Two arguments of the traced program or more that come back concatenated with something along one
dimension, and not otherwise changed.""",
    before="""class Growing(Step):
    def write(self, past, new, position):
        return torch.cat([past, new], dim=2)


cache = torch.empty(4, 8, 2048, 64, dtype=torch.bfloat16, device="meta")
x = torch.empty(4, 1, 512, dtype=torch.bfloat16, device="meta")
compile_for(
    Growing, {"x": x, "keys": cache, "values": cache, "position": torch.tensor([7])},
    topology="v6e:2x2", dp=4, dtype="bfloat16",
)""",
    after="""class Fixed(Step):
    def write(self, past, new, position):
        return past.index_copy(2, position, new)   # position: a tensor [1]; the positions after it are masked


cache = torch.empty(4, 8, 2048, 64, dtype=torch.bfloat16, device="meta")
x = torch.empty(4, 1, 512, dtype=torch.bfloat16, device="meta")
compile_for(
    Fixed, {"x": x, "keys": cache, "values": cache, "position": torch.tensor([7])},
    topology="v6e:2x2", dp=4, dtype="bfloat16",
)""",
    check=check,
)
