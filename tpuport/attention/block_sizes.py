"""Block sizes of the attention kernel, chosen for a shape from what `tpuport tune attention` measured.

`data/` holds one file for each generation of TPU: the bundles that the compiler schedules for steps of many sizes.
The choice is the cheapest by `block_costs.cycles` of all block sizes whose steps are known there, with any number of
chunks in a block of keys: so a length that is no multiple of much gets blocks that divide it with little padding.
Measurements are taken from the nearest head dimension at or above the call's, and from bfloat16 where its dtype has
none: sizes compare alike there, though cycles do not.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from tpuport.attention.kernel_cost import Blocks, Call, Row, cycles, vmem_budget, vmem_bytes, vmem_limit
from tpuport.errors import PortError
from tpuport.hardware.generations import GENERATIONS, check_generation, target_generation

__all__ = ["Blocks", "block_sizes", "chosen", "ranked", "vmem_limit_bytes"]

_LANES: Final = 128
_ITEMSIZE: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
# Longer schedules take ever longer to compile, seconds for each thousand bundles, and gain no percent.
_MOST_BUNDLES: Final = 24_000
_SMALL: Final = 16 << 20
_SPILLED: Final = 8 << 20
_MOST_KEYS: Final = 8192
# Of sizes that cost nearly the same, the smallest step: its program is shorter, and compiles sooner.
_NEARLY: Final = 1.005


def vmem_limit_bytes(generation: str | None = None, *, needed: int | None = None) -> int:
    """Vector memory in bytes that the kernel may take on this generation.

    Args:
        needed: what a short call takes by `block_costs.vmem_bytes`. Half of the memory is enough for most, and what a
            kernel may take, the program around it cannot keep there: a prompt of Llama-2-7B on v5e had its hidden
            states written to HBM and read again at each kernel.
    """
    limit = vmem_limit(_generation(generation))
    half = limit * 4 // 7  # half of the memory, of which the limit is seven eighths
    # The estimate leaves spilled registers out.
    enough = limit > _SMALL and needed is not None and needed * 3 // 2 + _SPILLED <= half
    return half if enough else limit


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
    """(rows of queries, keys of a step of the kernel, keys of a chunk of it), the fastest known for a shape.

    Args:
        heads: batch x query heads.
        queries, keys: lengths Q and T.
        dtype: name of the queries' dtype.
        masked: whether any key is compared or biased: by a band, segments or a bias. Padding by weights is not.
        left, right, offset: the band, as in `Mask`; with `masked` and without a band, every key is compared.
        generation: None is the default device's, or what `assume_generation` says.
        blocks: what a user asks for, which is checked and taken as it is.

    Raises:
        PortError: `blocks` that the kernel cannot run, or an unknown generation.
    """
    if blocks is not None:
        return _checked(blocks)
    has_band = left is not None or right is not None
    call = Call(
        heads, queries, keys, head_dim, value_dim, _ITEMSIZE.get(dtype, 4), left, right, offset,
        masked=masked and not has_band,
    )  # fmt: skip
    return _chosen(call, dtype, _generation(generation))


@functools.lru_cache(maxsize=1024)
def _chosen(call: Call, dtype: str, generation: str) -> Blocks:
    return chosen(call, _rows(call, dtype, generation), generation)


def chosen(call: Call, rows: tuple[Row, ...], generation: str) -> Blocks:
    """The block sizes that a call gets where `rows` are what was measured."""
    costs = ranked(call, rows, generation)
    enough = [costed for costed in costs if costed.cycles <= _NEARLY * costs[0].cycles]
    return min(enough, key=lambda costed: (costed.bundles, costed.cycles)).blocks


@dataclass(frozen=True)
class Costed:
    """Block sizes with the cycles of the whole call, and the bundles of one step, as they are known to be."""

    blocks: Blocks
    cycles: int | float
    bundles: int | float


def ranked(call: Call, rows: tuple[Row, ...], generation: str) -> list[Costed]:
    """Block sizes that suit a call and fit into vector memory, the fastest first."""
    fitting = [
        costed
        for row in _suiting(rows, call.queries)
        for chunks in _chunks(row.compute, call.keys)
        if (costed := _costed(row, chunks, call, generation)) is not None
    ]
    return sorted(fitting, key=lambda costed: (costed.cycles, costed.bundles)) or [
        _smallest(rows, call, generation)
    ]


def _costed(row: Row, chunks: int, call: Call, generation: str) -> Costed | None:
    blocks = Blocks(row.query, chunks * row.compute, row.compute)
    step = row.step(chunks)
    bundles = step.start + step.finish + step.fixed + step.whole + (step.edge if call.has_band else 0)
    if bundles > _MOST_BUNDLES or vmem_bytes(call, blocks) > vmem_budget(generation):
        return None
    return Costed(blocks, cycles(call, blocks, step, generation), bundles)


def _smallest(rows: tuple[Row, ...], call: Call, generation: str) -> Costed:
    """Where nothing fits by the estimate, the smallest there is: the compiler has the last word."""
    row = min(rows, key=lambda row: (row.query * row.compute, row.query))
    blocks = Blocks(row.query, row.compute, row.compute)
    return Costed(blocks, cycles(call, blocks, row.step(1), generation), 0)


def _suiting(rows: tuple[Row, ...], queries: int) -> list[Row]:
    """Rows whose block of queries is no larger than the queries need, and not far too small for many of them."""
    enough = min((row.query for row in rows if row.query >= queries), default=queries)
    suiting = [row for row in rows if min(queries // 8, 512) <= row.query <= enough]
    return suiting or list(rows)


def _chunks(compute: int, keys: int) -> range:
    """Numbers of chunks in a block of keys that is no larger than the keys need."""
    return range(1, max(1, min(-(-keys // compute), _MOST_KEYS // compute)) + 1)


def _rows(call: Call, dtype: str, generation: str) -> tuple[Row, ...]:
    """What was measured nearest to a call: its dtype, else bfloat16; its head dimension or the next above."""
    has_band = call.has_band or call.masked
    grids = [grid for grid in _data(generation)["grids"] if grid["has_band"] == has_band]
    of_dtype = [grid for grid in grids if grid["dtype"] == dtype] or grids
    width = max(call.head_dim, call.value_dim)
    above = [grid for grid in of_dtype if grid["head_dim"] >= width]
    grid = min(above, key=lambda g: g["head_dim"]) if above else max(of_dtype, key=lambda g: g["head_dim"])
    return _parsed(generation, grids.index(grid), has_band)


@functools.cache
def _parsed(generation: str, index: int, has_band: bool) -> tuple[Row, ...]:
    grids = [grid for grid in _data(generation)["grids"] if grid["has_band"] == has_band]
    return tuple(Row.from_json(row) for row in grids[index]["rows"])


@functools.cache
def _data(generation: str) -> dict[str, Any]:
    file = resources.files("tpuport.attention") / "data" / f"{GENERATIONS[generation].block_sizes}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def _generation(name: str | None) -> str:
    return target_generation() if name is None else check_generation(name)


def _checked(blocks: tuple[int, int, int]) -> Blocks:
    query, key, compute = blocks
    if any(size <= 0 or size % _LANES for size in blocks) or key % compute:
        raise PortError(
            "the kernel cannot run with these block sizes",
            where=f"blocks={tuple(blocks)}",
            fix="multiples of 128: rows of queries, keys of a step, and keys of a chunk, which divide them evenly",
        )
    return Blocks(query, key, compute)
