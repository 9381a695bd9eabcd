"""TPC009: a cache that a step may not overwrite."""

from collections.abc import Iterator, Sequence
from typing import Final

from tpuport.base.plurals import count_noun, is_or_are
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.cache_inputs import CacheInputs
from tpuport.topology.advice.evidence import CacheArray, Evidence
from tpuport.topology.advice.overwritten_inputs import OverwrittenInput
from tpuport.topology.advice.weight_placement import MIB, device_bytes

# Of the cache: the compiler may leave a small array of it apart.
_SHARE: Final = 0.9


def check(evidence: Evidence) -> Iterator[Hit]:
    """Caches that are not donated, or whose memory no result takes over."""
    copied = [array for array in evidence.cache if not array.donated]
    nbytes = sum(map(device_bytes, copied))
    # Whoever donates nothing gets this finding, and not one for each consequence.
    if nbytes >= MIB:
        yield _describe_copied_cache(evidence, copied, nbytes)
        return
    yield from _find_unused_donation(evidence)
    if evidence.report.task == "forward":
        yield from _find_overwritten_inputs(evidence)


def _describe_copied_cache(
    evidence: Evidence, arrays: Sequence[CacheArray], nbytes: int
) -> Hit:
    in_program = ""
    if copies := _count_copies(evidence, arrays):
        in_program = (
            f", and the program copies {count_noun(copies, 'array')} of its shape"
        )
    return Hit(
        f"{count_noun(len(arrays), 'array')} of the cache, {format_bytes(nbytes)} a device, {is_or_are(len(arrays))} "
        f"not donated: each step allocates a new cache beside the old one{in_program}",
        "use tpuport.compile(model) or tpuport.generate, which donate it; in jax.jit, donate_argnums",
        2 * nbytes,
    )


def _find_unused_donation(evidence: Evidence) -> Iterator[Hit]:
    program, donated = evidence.report.program, sum(map(device_bytes, evidence.cache))
    # No result can have the memory of a shorter cache: see TPC020.
    grows = any(array.growth for array in evidence.overwritten)
    if program is None or donated < MIB or grows:
        return
    # Bytes of arguments that results take over, as the compiler says.
    reused = program.memory_analysis().alias_size_in_bytes
    if reused >= _SHARE * donated:
        return
    inputs = CacheInputs(evidence)
    others = [
        array for array in evidence.overwritten if array.argument not in inputs.reused
    ]
    yield Hit(
        f"the cache is donated, but results take over only {format_bytes(reused)} of its {format_bytes(donated)} a "
        "device: each step allocates the rest again",
        "return the cache with the shapes, dtypes and shardings it came in with"
        f"{_describe_moved_input(inputs, others)}",
        2 * (donated - reused),
    )


def _find_overwritten_inputs(evidence: Evidence) -> Iterator[Hit]:
    """Inputs of a call that come back with a part overwritten, in memory of their
    own.
    """
    inputs = CacheInputs(evidence)
    # TPC020 has caches that grow: no result could take their memory over.
    overwritten = [array for array in evidence.overwritten if not array.growth]
    copied = [array for array in overwritten if not _shares_memory(inputs, array)]
    nbytes = inputs.input_bytes(copied)
    if nbytes < MIB:
        return
    come, them = ("comes", "it") if len(copied) == 1 else ("come", "them")
    yield Hit(
        f"{count_noun(len(copied), 'array')} of {inputs.joint_name(copied)}, {format_bytes(nbytes)} a device, "
        f"{come} back with a part overwritten, and {is_or_are(len(copied))} not donated: each step allocates "
        f"{format_bytes(inputs.output_bytes(copied))} beside {them}",
        "name the arguments in tpuport.compile(..., donate=[...]) and go on with those in the result, or pass keys "
        "and values in a StaticCache, which is donated by itself; in a jax.jit of your own, use donate_argnums"
        f"{_describe_moved_input(inputs, copied)}",
        2 * inputs.output_bytes(copied),
    )


def _shares_memory(inputs: CacheInputs, array: OverwrittenInput) -> bool:
    """Whether results have its memory, here or in the call's program: `tpuport.compile`
    donates some caches.
    """
    if array.argument in inputs.reused:
        return True
    call_input = inputs.find(array)
    return call_input is not None and call_input.in_cache


def _describe_moved_input(inputs: CacheInputs, arrays: list[OverwrittenInput]) -> str:
    """What to do if an input comes back with another sharding: nothing takes its memory
    over then, donated or not.
    """
    for array in arrays:
        share = inputs.output_share(array)
        if share != inputs.input_share(array):
            spec = inputs.write_spec(array.shape, share)
            return (
                f"; {list(array.shape)} comes back with a different sharding, so pass it in with the sharding it comes "
                f"back with: compat.wrap(jax.device_put(compat.to_jax(x), NamedSharding(mesh, {spec}))), with from "
                "tpuport import compat"
            )
    return ""


def _count_copies(evidence: Evidence, arrays: Sequence[CacheArray]) -> int:
    """The program's copies of arrays of the cache's shapes; those inside of fusions are
    not in memory.
    """
    shapes = {
        array.sharding.shard_shape(array.shape)
        for array in arrays
        if array.sharding is not None
    }
    copies = [
        copy for copy in evidence.movement.collectives("copy") if not copy.is_fused
    ]
    return sum(
        not shapes.isdisjoint(array.dims for array in copy.arrays) for copy in copies
    )


RULE = AdviceRule(
    id="TPC009",
    name="cache-not-donated",
    summary="a cache that each step copies because it may not overwrite it",
    why="""A step changes one position of the cache. Without donation, the caller keeps the old cache, so the step
copies all of it to a new one: twice the memory, and a full read and write of the cache for each token. A donated cache
that comes back with a different dtype or sharding costs just as much.""",
    measured="""Cache arrays that are not donated, from 1 MiB per device; or a donated cache of which results take over
less than 90%, by the compiler's count. In a forward call of your own: inputs with three or more dimensions that come
back partly overwritten (by a slice update or a scatter in the traced program, whatever the input's name), if no result
takes over their memory, from 1 MiB. Caches of transformers are exempt: `tpuport.compile` donates them.""",
    before="""class Step(nn.Module):
    def forward(self, cache, new, position):
        return cache.index_copy(2, position, new)


cache = torch.empty(4, 8, 2048, 64, dtype=torch.bfloat16, device="meta")
new = torch.empty(4, 8, 1, 64, dtype=torch.bfloat16, device="meta")
compile_for(
    Step(), {"cache": cache, "new": new, "position": torch.tensor([7])}, topology="v6e:2x2", tp=4
)""",
    after="""class Step(nn.Module):
    def forward(self, cache, new, position):
        cache.update(new, new, 0, {"cache_position": position})
        return cache


cache = StaticCache(config=llama().config, max_cache_len=2048)  # which tpuport.compile donates
cache.early_initialization(4, 8, 64, torch.bfloat16, "cpu")
new = torch.empty(4, 8, 1, 64, dtype=torch.bfloat16, device="meta")
compile_for(
    Step(), {"cache": cache, "new": new, "position": torch.tensor([7])}, topology="v6e:2x2", tp=4
)""",
    check=check,
)
