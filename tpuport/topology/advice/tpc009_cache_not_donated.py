"""TPC009: a cache that a step may not overwrite."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.kept import (
    Input,
    called,
    input_of,
    inputs_of,
    share_bytes,
    share_given,
    share_made,
    spec_of_share,
    taken_over,
)
from tpuport.topology.advice.placement import MIB, held
from tpuport.topology.advice.returned import Returned
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
    grows = any(one.grown for one in evidence.returned)  # no output can have its memory: see TPC020
    if taken is not None and donated >= MIB and taken < _SHARE * donated and not grows:
        over = taken_over(evidence)
        yield Hit(
            f"the cache is donated, and only {size(taken)} of its {size(donated)} a device are taken over by outputs: "
            "the rest is made anew in each step",
            "return the cache in the shapes, dtypes and places that it was given in"
            + _elsewhere(evidence, [one for one in evidence.returned if one.argument not in over]),
            2 * (donated - taken),
        )
    if evidence.report.task == "forward":
        yield from _inputs(evidence)


def _inputs(evidence: Evidence) -> Iterator[Hit]:
    """Inputs of a call that come back with a part overwritten, in memory of their own."""
    inputs, taken = inputs_of(evidence), taken_over(evidence)
    kept = [
        one
        for one in evidence.returned
        if not one.grown and one.argument not in taken and not _is_donated_by_compile(inputs, one)
    ]
    given = sum(share_bytes(one, share_given(evidence, one)) for one in kept)
    if given < MIB:
        return
    made = sum(share_bytes(one, share_made(evidence, one)) for one in kept)
    yield Hit(
        f"{several(len(kept), 'array')} of {called(inputs, kept)}, {size(given)} a device, "
        f"{'comes' if len(kept) == 1 else 'come'} back with a part overwritten, and "
        f"{'is' if len(kept) == 1 else 'are'} not donated: {size(made)} are made anew beside "
        f"{'it' if len(kept) == 1 else 'them'} in each step",
        "tpuport.compile donates caches of transformers, and of other tensors none: give keys and values in a "
        "StaticCache; or call with donate_argnums in a jax.jit of your own" + _elsewhere(evidence, kept),
        2 * made,
    )


def _is_donated_by_compile(inputs: Mapping[str, Input], one: Returned) -> bool:
    """Whether it is of a cache that `tpuport.compile` donates: there the call's program has its memory."""
    found = input_of(inputs, one)
    return found is not None and found.in_cache


def _elsewhere(evidence: Evidence, kept: list[Returned]) -> str:
    """What to do where it comes back in another place: nothing takes its memory over then, donated or not."""
    for one in kept:
        share = share_made(evidence, one)
        if share != share_given(evidence, one):
            spec = spec_of_share(evidence, one.shape, share)
            return (
                f"; {list(one.shape)} comes back in another place than it was given in, so give it there: "
                f"jax.device_put(x, NamedSharding(mesh, {spec}))"
            )
    return ""


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
lets outputs take over, below 90% of the cache. In a forward call of one's own: inputs of three dimensions or more that
come back with a part overwritten (a slice or a scatter in the traced program, whatever the input is called), and whose
memory no output takes over, from 1 MiB. A cache of transformers is none of them: `tpuport.compile` donates it.""",
    before="""step = jax.jit(decode)""",
    after="""step = jax.jit(decode, donate_argnums=1)   # tpuport.compile and tpuport.generate do it""",
    check=check,
)
