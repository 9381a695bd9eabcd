"""TPC009: a cache that a step may not overwrite."""

from collections.abc import Iterator
from typing import Any, Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import MIB, held
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several, size

# Of the cache: the compiler may leave a small array of it apart.
_SHARE: Final = 0.9


def check(evidence: Evidence) -> Iterator[Hit]:
    """Caches that are not donated, or whose memory no output takes over."""
    kept = [array for array in evidence.cache if not array.donated]
    total = sum(map(held, kept))
    if total >= MIB:
        copies = _copies(evidence, kept)
        yield Hit(
            f"{several(len(kept), 'array')} of the cache, {size(total)} a device, {'is' if len(kept) == 1 else 'are'} "
            "not donated: the new cache is made beside the old one"
            + (f", with {several(copies, 'copy', 'copies')} in the program" if copies else ""),
            "tpuport.compile(model) and tpuport.generate donate it; in jax.jit, donate_argnums",
            2 * total,
        )
        return
    donated = sum(map(held, evidence.cache))
    taken = _taken_over(evidence)
    if taken is not None and donated >= MIB and taken < _SHARE * donated:
        yield Hit(
            f"the cache is donated, and only {size(taken)} of its {size(donated)} a device are taken over by outputs: "
            "the rest is made anew in each step",
            "return the cache in the shapes, dtypes and places that it was given in",
            2 * (donated - taken),
        )


def _taken_over(evidence: Evidence) -> int | None:
    """Bytes of arguments that outputs take over, as the compiler says."""
    analysis = getattr(evidence.report.program, "memory_analysis", lambda: None)()
    return getattr(analysis, "alias_size_in_bytes", None)


def _copies(evidence: Evidence, arrays: list[Any]) -> int:
    shapes = {
        tuple(array.sharding.shard_shape(array.shape)) for array in arrays if array.sharding is not None
    }
    return sum(
        any(tuple(array.dims) in shapes for array in one.arrays)
        for one in evidence.instructions
        if one.operation in ("copy", "copy-start") and not one.is_fused
    )


RULE = Rule(
    id="TPC009",
    name="cache-not-donated",
    summary="a cache that is copied in each step because the step may not overwrite it",
    why="""A step changes one position of the cache. Without donation the caller keeps the old cache, so the whole of
it is copied to a new one: twice the memory, and for each token a read and a write of all of it. A cache that is
donated and comes back in another dtype or place costs the same.""",
    measured="""Which cache arrays are donated, from 1 MiB a device; and the bytes of arguments that the compiler
lets outputs take over, below 90% of the cache.""",
    before="""step = jax.jit(decode)""",
    after="""step = jax.jit(decode, donate_argnums=1)   # tpuport.compile and tpuport.generate do it""",
    check=check,
)
