"""TPC020: a cache that comes back longer than it was given."""

from collections.abc import Iterator
from typing import Final

from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import AdviceRule, Hit
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
        f"{count_noun(len(grown), 'array')} of {inputs.joint_name(grown)} come back longer by {first.growth} than "
        f"they came in, such as {list(first.shape)}: the next call has different shapes, so each call is traced and "
        "compiled again, and copies all of them",
        "use a cache of fixed length that is written in place: transformers.StaticCache(config=model.config, "
        "max_cache_len=...), which tpuport.compile donates, or keys.index_copy(2, position, new); or "
        "tpuport.generate, which takes care of all of it",
        # Each is read and written. The compilation costs more, but has no bytes.
        2 * inputs.input_bytes(grown),
    )


RULE = AdviceRule(
    id="TPC020",
    name="growing-cache",
    summary="a cache that comes back longer than it came in, so that each step is a new program",
    why="""A compiled program has fixed shapes. If each step appends a position to the cache, the next step has
different shapes, and a step of milliseconds turns into a compilation of seconds or minutes. Concatenation also copies
the whole cache for each token. transformers' DynamicCache works this way, and so do the caches of many models.""",
    measured="""At least two arguments of the traced program that come back concatenated with something along one
dimension, and otherwise unchanged.""",
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
