"""TPC009: a cache that a step may not overwrite."""

from collections.abc import Iterator, Sequence
from typing import Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, are, format_bytes, format_count
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


def _describe_copied_cache(evidence: Evidence, arrays: Sequence[CacheArray], nbytes: int) -> Hit:
    copies = _count_copies(evidence, arrays)
    in_program = f", with {format_count(copies, 'copy', 'copies')} in the program" if copies else ""
    return Hit(
        f"{format_count(len(arrays), 'array')} of the cache, {format_bytes(nbytes)} a device, {are(arrays)} not "
        f"donated: the new cache is made beside the old one{in_program}",
        "tpuport.compile(model) and tpuport.generate donate it; in jax.jit, donate_argnums",
        2 * nbytes,
    )


def _find_unused_donation(evidence: Evidence) -> Iterator[Hit]:
    donated, reused = sum(map(device_bytes, evidence.cache)), _reused_bytes(evidence)
    # No result can have the memory of a shorter cache: see TPC020.
    grows = any(array.growth for array in evidence.overwritten)
    if reused is None or donated < MIB or reused >= _SHARE * donated or grows:
        return
    inputs = CacheInputs(evidence)
    others = [array for array in evidence.overwritten if array.argument not in inputs.reused]
    yield Hit(
        f"the cache is donated, and results take over only {format_bytes(reused)} of its {format_bytes(donated)} a "
        "device: the rest is made again in each step",
        "return the cache in the shapes, dtypes and shardings that it was given in"
        f"{_describe_moved_input(inputs, others)}",
        2 * (donated - reused),
    )


def _find_overwritten_inputs(evidence: Evidence) -> Iterator[Hit]:
    """Inputs of a call that come back with a part overwritten, in memory of their own."""
    inputs = CacheInputs(evidence)
    # TPC020 has caches that grow: no result could take their memory over.
    copied = [
        array
        for array in evidence.overwritten
        if not array.growth
        and array.argument not in inputs.reused
        and not _is_donated_by_compile(inputs, array)
    ]
    nbytes = inputs.input_bytes(copied)
    if nbytes < MIB:
        return
    come, them = ("comes", "it") if len(copied) == 1 else ("come", "them")
    yield Hit(
        f"{format_count(len(copied), 'array')} of {inputs.joint_name(copied)}, {format_bytes(nbytes)} a device, "
        f"{come} back with a part overwritten, and {are(copied)} not donated: "
        f"{format_bytes(inputs.output_bytes(copied))} are made beside {them} in each step",
        "tpuport.compile donates caches of transformers, and no other tensors: give keys and values in a "
        f"StaticCache; or call with donate_argnums in a jax.jit of your own{_describe_moved_input(inputs, copied)}",
        2 * inputs.output_bytes(copied),
    )


def _is_donated_by_compile(inputs: CacheInputs, array: OverwrittenInput) -> bool:
    """Whether it is of a cache that `tpuport.compile` donates: the results of the call's program have its memory."""
    call_input = inputs.find(array)
    return call_input is not None and call_input.in_cache


def _describe_moved_input(inputs: CacheInputs, arrays: list[OverwrittenInput]) -> str:
    """What to do if an input comes back with another sharding: nothing takes its memory over then, donated or not."""
    for array in arrays:
        share = inputs.output_share(array)
        if share != inputs.input_share(array):
            spec = inputs.write_spec(array.shape, share)
            return (
                f"; {list(array.shape)} comes back with another sharding than it was given with, so give it as it "
                f"comes back: jax.device_put(x, NamedSharding(mesh, {spec}))"
            )
    return ""


def _reused_bytes(evidence: Evidence) -> int | None:
    """Bytes of arguments that results take over, as the compiler says."""
    program = evidence.report.program
    return None if program is None else program.memory_analysis().alias_size_in_bytes


def _count_copies(evidence: Evidence, arrays: Sequence[CacheArray]) -> int:
    shapes = {array.sharding.shard_shape(array.shape) for array in arrays if array.sharding is not None}
    copies = [
        instruction
        for instruction in evidence.compiled.instructions
        if instruction.kind == "copy" and not instruction.is_fused
    ]
    return sum(any(array.dims in shapes for array in copy.arrays) for copy in copies)


RULE = AdviceRule(
    id="TPC009",
    name="cache-not-donated",
    summary="a cache that is copied in each step because the step may not overwrite it",
    why="""A step changes one position of the cache. Without donation the caller keeps the old cache, so all of it is
copied to a new one: twice the memory, and for each token a read and a write of all of it. A cache that is donated and
comes back in another dtype or with another sharding costs the same.""",
    measured="""Which cache arrays are donated, from 1 MiB a device; and the bytes of arguments that the compiler
lets results take over, below 90% of the cache. In a forward call of your own: inputs of three dimensions or more that
come back with a part overwritten (a slice or a scatter in the traced program, whatever the input is called), and whose
memory no result takes over, from 1 MiB. A cache of transformers is not one of them: `tpuport.compile` donates it.""",
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
