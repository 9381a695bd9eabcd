"""What a call of the attention kernel costs with given block sizes, from what the compiler scheduled for its steps.

The kernel's grid has one step for each (batch and head, block of queries, block of keys that may be seen). The
compiler's schedule says how many bundles each part of a step takes, and the shape says how often each part runs:

    cycles = heads x (query blocks x (start + finish) + whole blocks x whole + edge blocks x edge + steps x fixed)

A core executes a bundle a cycle when nothing stalls. It stalls where keys and values come in more slowly than they are
used, so a block's cycles are at least its bytes over the memory's bytes a cycle.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

from tpuport.hardware.generations import GENERATIONS

Number = int | float


class Blocks(NamedTuple):
    """Rows of queries and keys of one step of the kernel, and keys of a chunk of it: multiples of 128."""

    query: int
    key: int
    compute: int


@dataclass(frozen=True)
class Call:
    """What a call's cost depends on.

    Attributes:
        heads: batch x query heads.
        queries, keys, head_dim, value_dim: lengths, and widths of keys and of values.
        itemsize: bytes of an element.
        left, right, offset: the band, as in `Mask`.
        masked: whether every key is compared, or biased, for another reason than the band.
    """

    heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    itemsize: int
    left: int | None = None
    right: int | None = None
    offset: int = 0
    masked: bool = False

    @property
    def has_band(self) -> bool:
        """Whether positions decide what is seen."""
        return self.left is not None or self.right is not None


@dataclass(frozen=True)
class Step:
    """Bundles of the parts of one step.

    Attributes:
        start, finish: what runs at the first and the last block of keys of each block of queries.
        fixed: what runs in every step of the grid.
        whole: a block of keys of which everything is seen.
        edge: a block of keys on the edge of the band, compared key by key; `whole` where there is no band.
    """

    start: Number
    finish: Number
    fixed: Number
    whole: Number
    edge: Number

    @classmethod
    def of(cls, bundles: int, sections: tuple[int, ...], *, has_band: bool) -> "Step":
        """From a kernel's schedule: its bundles, and those of its conditional sections in the order of the program.

        Where the sections are not the expected ones, every part is taken to run in every step.
        """
        fixed = bundles - sum(sections)
        if has_band and len(sections) == 4:
            start, whole, edge, finish = sections
            return cls(start, finish, fixed, whole, edge)
        if not has_band and len(sections) == 2:
            return cls(sections[0], sections[1], 0, fixed, fixed)
        return cls(0, 0, 0, bundles, bundles)


class Visits(NamedTuple):
    """Of one head: blocks of queries, blocks of keys seen whole and in part over all of them, and steps of the grid."""

    query_blocks: int
    whole: int
    edge: int
    steps: int


def visits(call: Call, blocks: Blocks) -> Visits:
    """How often each part of a step runs, as `kernel.Layout` has it."""
    query_blocks, key_blocks = -(-call.queries // blocks.query), -(-call.keys // blocks.key)
    if not call.has_band:
        return Visits(query_blocks, query_blocks * key_blocks, 0, query_blocks * key_blocks)
    return _visits_of_band(call, blocks.query, blocks.key)


@functools.lru_cache(maxsize=4096)
def _visits_of_band(call: Call, rows: int, keys: int) -> Visits:
    query_blocks = -(-call.queries // rows)
    whole = edge = most = 0
    for begin in range(call.offset, call.offset + query_blocks * rows, rows):
        end = begin + rows - 1
        first, last = _first_key(call, begin) // keys, _last_key(call, end) // keys
        active = max(0, last - first + 1)
        inner = (_last_key(call, begin) + 1) // keys - -(-_first_key(call, end) // keys)
        inner = min(max(0, inner), active)
        whole, edge, most = whole + inner, edge + active - inner, max(most, active)
    return Visits(query_blocks, whole, edge, query_blocks * max(1, most))


def _first_key(call: Call, position: int) -> int:
    return 0 if call.left is None else max(position - call.left, 0)


def _last_key(call: Call, position: int) -> int:
    return call.keys - 1 if call.right is None else min(position + call.right, call.keys - 1)


def cycles(call: Call, blocks: Blocks, step: Step, generation: str) -> Number:
    """Cycles of the whole call on one core."""
    seen = visits(call, blocks)
    block_bytes = blocks.key * (call.head_dim + call.value_dim) * call.itemsize
    slowest = block_bytes / GENERATIONS[generation].bytes_per_cycle
    whole = step.edge if call.masked else step.whole
    a_head = (
        seen.query_blocks * (step.start + step.finish)
        + seen.whole * max(whole, slowest)
        + seen.edge * max(step.edge, slowest)
        + seen.steps * step.fixed
    )
    return call.heads * a_head


def vmem_bytes(call: Call, blocks: Blocks) -> int:
    """Vector memory that the kernel's windows and scores take, registers that are spilled left out."""
    dim, width = (-(-size // 128) * 128 for size in (call.head_dim, call.value_dim))  # lanes are padded
    inputs = (blocks.query + blocks.key) * dim + blocks.key * call.value_dim
    outputs = blocks.query * (width + 2)
    twice = 2 * (inputs + outputs) * call.itemsize  # one block is worked on while the next comes in
    running = (call.value_dim + 16) * blocks.query * 4
    scores = blocks.compute * blocks.query * 4
    return twice + running + 9 * scores // 4


def vmem_limit(generation: str) -> int:
    """Vector memory in bytes that a kernel may take on a generation, the rest being left to the program around it."""
    capacity = GENERATIONS[generation].vmem
    return capacity if capacity <= 16 << 20 else capacity * 7 // 8


def vmem_budget(generation: str) -> int:
    """What `vmem_bytes` may come to: the limit, and on v4 three quarters of it.

    Spilled registers come on top. On v4, with 16 MiB in all, they were seen to take 5.
    """
    limit = vmem_limit(generation)
    return limit if limit > 16 << 20 else limit * 3 // 4


@dataclass(frozen=True)
class Row:
    """Steps of kernels with the same `query` and `compute`, by the number of chunks in a block of keys.

    Attributes:
        start, finish, fixed: as in `Step`.
        points: (chunks, whole, edge) of each number that was measured, two at least, in their order; between them and
            beyond them, the line through the nearest two holds within a few percent.
    """

    query: int
    compute: int
    start: Number
    finish: Number
    fixed: Number
    points: tuple[tuple[int, Number, Number], ...]

    @classmethod
    def through(cls, query: int, compute: int, steps: dict[int, Step]) -> "Row":
        """From the steps by the number of chunks."""
        points = tuple((chunks, steps[chunks].whole, steps[chunks].edge) for chunks in sorted(steps))
        largest = steps[max(steps)]
        return cls(query, compute, largest.start, largest.finish, largest.fixed, points)

    def step(self, chunks: int) -> Step:
        """The step of a kernel with so many chunks in a block of keys."""
        upper = next((i for i, point in enumerate(self.points) if point[0] >= chunks), len(self.points) - 1)
        (few, *less), (many, *more) = self.points[max(upper, 1) - 1], self.points[max(upper, 1)]
        share = (chunks - few) / (many - few)
        whole, edge = (a + (b - a) * share for a, b in zip(less, more, strict=True))
        return Step(self.start, self.finish, self.fixed, whole, edge)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Row":
        """The inverse of dataclasses.asdict, through JSON."""
        return cls(**{**row, "points": tuple((p[0], p[1], p[2]) for p in row["points"])})
