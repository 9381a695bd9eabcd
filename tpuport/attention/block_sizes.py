"""Block sizes of the attention kernel, chosen for a shape from what
`tpuport tune attention` measured.

`data/` holds a file for each generation of TPU that was measured: the bundles that the
compiler schedules for steps of many sizes. The choice is the cheapest by
`kernel_cost.cycles` of all block sizes whose steps are known there, with any number of
chunks in a block of keys, so even an odd length gets blocks that divide it with little
padding. Measurements are those of the nearest head dimension at or above the call's,
and of bfloat16 if its dtype has none: sizes compare alike there, though cycles do not.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from tpuport.attention.kernel_cost import (
    ITEMSIZE,
    LANES,
    SMALL_VMEM,
    Blocks,
    KernelCall,
    Row,
    cycles,
    vmem_budget,
    vmem_bytes,
    vmem_limit,
)
from tpuport.errors import PortError
from tpuport.hardware.generations import (
    GENERATIONS,
    MIB,
    check_generation,
    target_generation,
)

__all__ = ["Blocks", "block_sizes", "choose_blocks", "rank_blocks", "vmem_limit_bytes"]

# Longer schedules take ever longer to compile, seconds for each thousand bundles, and
# gain less than a percent.
_MOST_BUNDLES: Final = 24_000
# Room for spilled registers, which `vmem_bytes` does not know.
_SPILLED: Final = 8 * MIB
_MOST_KEYS: Final = 8192
# Of sizes that cost nearly the same, the smallest step: its program is shorter, and
# compiles sooner.
_NEARLY: Final = 1.005


def vmem_limit_bytes(
    generation: str | None = None, *, needed: int | None = None
) -> int:
    """Vector memory in bytes that the kernel may take on this generation.

    Args:
        generation: None is the target generation.
        needed: what a short call takes by `kernel_cost.vmem_bytes`; None asks for all
            that a kernel may take.
    """
    limit = vmem_limit(_resolve_generation(generation))
    if limit <= SMALL_VMEM or needed is None:
        return limit
    # What a kernel may take, the program around it cannot use: with the whole limit, a
    # prompt of Llama-2-7B on v5e wrote its hidden states to HBM and read them again at
    # each kernel. Half of the memory is enough for most calls.
    half = limit * 4 // 7  # the limit is seven eighths of the memory
    # `needed` is an estimate without spilled registers.
    is_enough = needed * 3 // 2 + _SPILLED <= half
    return half if is_enough else limit


def block_sizes(
    *,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    value_dim: int,
    dtype: str,
    masked: bool,
    left: int | None = None,
    right: int | None = None,
    offset: int = 0,
    generation: str | None = None,
    blocks: tuple[int, int, int] | None = None,
) -> Blocks:
    """(rows of queries, keys of a step of the kernel, keys of a chunk of it), the
    fastest known for a shape.

    Args:
        heads: batch x query heads.
        queries, keys: lengths Q and T.
        dtype: name of the queries' dtype.
        masked: whether any key is compared or biased: by a band, segments or a bias.
            Padding by weights is not.
        left, right, offset: the band, as in `Mask`; with `masked` and without a band,
            every key is compared.
        generation: None is the target generation.
        blocks: what a user asks for, which is checked and returned.

    Raises:
        PortError: `blocks` that the kernel cannot run, or an unknown generation.
    """
    if blocks is not None:
        return _check_blocks(blocks)
    has_band = left is not None or right is not None
    call = KernelCall(
        heads, queries, keys, head_dim, value_dim, ITEMSIZE.get(dtype, 4), left, right, offset,
        masked=masked and not has_band,
    )  # fmt: skip
    return _choose_measured(call, dtype, _resolve_generation(generation))


# Every layer of a model makes the same call.
@functools.lru_cache(maxsize=1024)
def _choose_measured(call: KernelCall, dtype: str, generation: str) -> Blocks:
    return choose_blocks(call, _nearest_rows(call, dtype, generation), generation)


def choose_blocks(call: KernelCall, rows: tuple[Row, ...], generation: str) -> Blocks:
    """The block sizes that a call gets if `rows` are what was measured."""
    ranking = rank_blocks(call, rows, generation)
    enough = _NEARLY * ranking[0].cycles
    candidates = [candidate for candidate in ranking if candidate.cycles <= enough]
    return min(
        candidates, key=lambda candidate: (candidate.bundles, candidate.cycles)
    ).blocks


@dataclass(frozen=True)
class CostedBlocks:
    """Block sizes with the cycles of the whole call, and the bundles of one step, by
    the measurements.
    """

    blocks: Blocks
    cycles: int | float
    bundles: int | float


def rank_blocks(
    call: KernelCall, rows: tuple[Row, ...], generation: str
) -> list[CostedBlocks]:
    """Block sizes that suit a call and fit into vector memory, the fastest first."""
    costs = [
        _cost(row, chunks, call, generation)
        for row in _suitable_rows(rows, call.queries)
        for chunks in _chunk_counts(row.compute, call.keys)
    ]
    candidates = sorted(
        filter(None, costs), key=lambda candidate: (candidate.cycles, candidate.bundles)
    )
    return candidates or [_smallest(rows, call, generation)]


def _cost(
    row: Row, chunks: int, call: KernelCall, generation: str
) -> CostedBlocks | None:
    """The cost of one size; None if it does not fit, or takes too long to compile."""
    blocks = Blocks(row.query, chunks * row.compute, row.compute)
    step = row.step(chunks)
    bundles = step.start + step.finish + step.fixed + step.whole
    if call.has_band:
        bundles += step.edge
    if bundles > _MOST_BUNDLES or vmem_bytes(call, blocks) > vmem_budget(generation):
        return None
    return CostedBlocks(blocks, cycles(call, blocks, step, generation), bundles)


def _smallest(rows: tuple[Row, ...], call: KernelCall, generation: str) -> CostedBlocks:
    """The smallest size, for a call for which nothing fits by the estimate: the
    compiler has the last word.
    """
    row = min(rows, key=lambda row: (row.query * row.compute, row.query))
    blocks = Blocks(row.query, row.compute, row.compute)
    return CostedBlocks(blocks, cycles(call, blocks, row.step(1), generation), 0)


def _suitable_rows(rows: tuple[Row, ...], queries: int) -> list[Row]:
    """Rows whose block of queries is not larger than the queries need, and not far too
    small for many of them.
    """
    largest = min((row.query for row in rows if row.query >= queries), default=queries)
    smallest = min(queries // 8, 512)
    return [row for row in rows if smallest <= row.query <= largest] or list(rows)


def _chunk_counts(compute: int, keys: int) -> range:
    """Numbers of chunks in a block of keys that is not larger than the keys need."""
    most = min(-(-keys // compute), _MOST_KEYS // compute)
    return range(1, max(1, most) + 1)


def _nearest_rows(call: KernelCall, dtype: str, generation: str) -> tuple[Row, ...]:
    """What was measured nearest to a call: its dtype, else bfloat16; its head dimension
    or the next above.
    """
    has_band = call.has_band or call.masked
    grids = _grids(generation, has_band)
    candidates = [grid for grid in grids if grid["dtype"] == dtype] or grids
    candidates = sorted(candidates, key=lambda grid: grid["head_dim"])
    width = max(call.head_dim, call.value_dim)
    wide_enough = [grid for grid in candidates if grid["head_dim"] >= width]
    # A head dimension beyond everything measured takes the widest.
    grid = (wide_enough or candidates[-1:])[0]
    return _parse_rows(generation, grids.index(grid), has_band)


def _grids(generation: str, has_band: bool) -> list[dict[str, Any]]:
    return [
        grid
        for grid in _measurements(generation)["grids"]
        if grid["has_band"] == has_band
    ]


@functools.cache
def _parse_rows(generation: str, index: int, has_band: bool) -> tuple[Row, ...]:
    return tuple(map(Row.from_json, _grids(generation, has_band)[index]["rows"]))


@functools.cache
def _measurements(generation: str) -> dict[str, Any]:
    file = (
        resources.files("tpuport.attention")
        / "data"
        / f"{GENERATIONS[generation].block_sizes}.json"
    )
    return json.loads(file.read_text(encoding="utf-8"))


def _resolve_generation(name: str | None) -> str:
    if name is None:
        return target_generation()
    return check_generation(name)


def _check_blocks(blocks: tuple[int, int, int]) -> Blocks:
    query, key, compute = blocks
    if any(size <= 0 or size % LANES for size in blocks) or key % compute:
        raise PortError(
            "the kernel cannot run with these block sizes",
            where=f"blocks={tuple(blocks)}",
            fix="multiples of 128: rows of queries, keys of a step, and keys of a chunk, which divide them evenly",
        )
    return Blocks(query, key, compute)
