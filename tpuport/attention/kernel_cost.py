"""What a call of the attention kernel costs with some block sizes, from what the
compiler scheduled for its steps.

The kernel's grid has one step for each (batch and head, block of queries, block of keys
that may be seen). The compiler's schedule says how many bundles each part of a step
takes, and the shape says how often each part runs:

    cycles = heads x (query blocks x (start + finish) + whole blocks x whole + edge
    blocks x edge + steps x fixed)

A core executes a bundle a cycle if nothing stalls. It stalls if keys and values arrive
more slowly than they are used, so a block's cycles are at least its bytes over the
memory's bytes a cycle. It also takes the core some time to start a copy: of keys and
values when a step of the grid fetches them, and of queries and results for each block
of queries.
"""

import bisect
import functools
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tpuport.hardware.generations import GENERATIONS, MIB

Number = int | float

LANES: Final = 128
# Bytes of an element of the dtypes that the kernel takes, by name.
ITEMSIZE: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
# Generations with no more vector memory than this lend a kernel all of it.
SMALL_VMEM: Final = 16 * MIB
# Queries whose hidden states are 32 MiB at a width of 4,096, in 16 bits.
SHORT: Final = 4096
# Keys and values; queries, results and their log-sum-exp.
_COPIES_OF_KEYS: Final = 2
_COPIES_OF_QUERIES: Final = 3


class Blocks(NamedTuple):
    """Rows of queries and keys of one step of the kernel, and keys of a chunk of it:
    multiples of 128.
    """

    query: int
    key: int
    compute: int


@dataclass(frozen=True)
class KernelCall:
    """What a call's cost depends on.

    Attributes:
        heads: batch x query heads.
        queries, keys, head_dim, value_dim: lengths, and widths of keys and of values.
        itemsize: bytes of an element.
        left, right, offset: the band, as in `Mask`.
        masked: whether every key is compared, or biased, for another reason than the
            band.
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
        """Whether positions decide what is visible."""
        return self.left is not None or self.right is not None

    def first_key(self, position: int) -> int:
        """The first key that a query at this position sees."""
        return 0 if self.left is None else max(position - self.left, 0)

    def last_key(self, position: int) -> int:
        """The last key that a query at this position sees."""
        end = self.keys - 1
        return end if self.right is None else min(position + self.right, end)


@dataclass(frozen=True)
class Step:
    """Bundles of the parts of one step.

    Attributes:
        start, finish: what runs at the first and the last block of keys of each block
            of queries.
        fixed: what runs in every step of the grid.
        whole: a block of keys of which everything is visible.
        edge: a block of keys on the edge of the band, compared key by key; `whole` if
            there is no band.
    """

    start: Number
    finish: Number
    fixed: Number
    whole: Number
    edge: Number

    @classmethod
    def of(cls, bundles: int, sections: tuple[int, ...], *, has_band: bool) -> "Step":
        """From a kernel's schedule: its bundles, and those of its conditional sections
        in the order of the program.

        If the sections are not the expected ones, every part is assumed to run in every
        step.
        """
        fixed = bundles - sum(sections)
        match has_band, sections:
            case True, (start, whole, edge, finish):
                return cls(start, finish, fixed, whole, edge)
            # Without a band, the products are under no condition.
            case False, (start, finish):
                return cls(start, finish, 0, fixed, fixed)
        return cls(0, 0, 0, bundles, bundles)


@dataclass(frozen=True)
class Row:
    """Steps of kernels with the same `query` and `compute`, by the number of chunks in
    a block of keys.

    Attributes:
        start, finish, fixed: as in `Step`.
        points: (chunks, whole, edge) of each number that was measured, at least two, in
            ascending order; between and beyond them, the line through the nearest two
            holds within a few percent.
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
        points = tuple(
            (chunks, steps[chunks].whole, steps[chunks].edge)
            for chunks in sorted(steps)
        )
        largest = steps[max(steps)]
        return cls(query, compute, largest.start, largest.finish, largest.fixed, points)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Row":
        """The inverse of dataclasses.asdict, through JSON."""
        return cls(**{**row, "points": tuple(map(tuple, row["points"]))})

    def step(self, chunks: int) -> Step:
        """The step of a kernel with this number of chunks in a block of keys."""
        # The segment that contains the number, or the nearest one if it lies beyond the
        # ends.
        measured = [point[0] for point in self.points]
        upper = min(max(bisect.bisect_left(measured, chunks), 1), len(measured) - 1)
        (few, few_whole, few_edge), (many, many_whole, many_edge) = self.points[
            upper - 1 : upper + 1
        ]
        share = (chunks - few) / (many - few)
        whole = few_whole + (many_whole - few_whole) * share
        edge = few_edge + (many_edge - few_edge) * share
        return Step(self.start, self.finish, self.fixed, whole, edge)


class Visits(NamedTuple):
    """Of one head: blocks of queries, blocks of keys seen whole and in part over all of
    them, and steps of the grid.
    """

    query_blocks: int
    whole: int
    edge: int
    steps: int


def visits(call: KernelCall, blocks: Blocks) -> Visits:
    """How often each part of a step runs, as in `kernel_layout.Layout`."""
    query_blocks, key_blocks = (
        -(-call.queries // blocks.query),
        -(-call.keys // blocks.key),
    )
    if not call.has_band:
        return Visits(
            query_blocks, query_blocks * key_blocks, 0, query_blocks * key_blocks
        )
    return _visits_of_band(call, blocks.query, blocks.key)


@functools.lru_cache(maxsize=4096)
def _visits_of_band(call: KernelCall, rows: int, keys: int) -> Visits:
    query_blocks = -(-call.queries // rows)
    whole = edge = most_visible = 0
    for start in range(call.offset, call.offset + query_blocks * rows, rows):
        end = start + rows - 1
        first, last = call.first_key(start) // keys, call.last_key(end) // keys
        visible = max(0, last - first + 1)
        # Whole blocks lie between the first key that the last query sees and the last
        # key that the first query sees.
        inner = (call.last_key(start) + 1) // keys - -(-call.first_key(end) // keys)
        inner = min(max(0, inner), visible)
        whole += inner
        edge += visible - inner
        most_visible = max(most_visible, visible)
    return Visits(query_blocks, whole, edge, query_blocks * max(1, most_visible))


def cycles(call: KernelCall, blocks: Blocks, step: Step, generation: str) -> Number:
    """Cycles of the whole call on one core."""
    hardware = GENERATIONS[generation]
    count = visits(call, blocks)
    block_bytes = blocks.key * (call.head_dim + call.value_dim) * call.itemsize
    transfer = block_bytes / hardware.bytes_per_cycle
    copy_cycles = hardware.copy_start.value * hardware.clock
    whole = step.whole
    # Segments or a bias are compared key by key, as on the edge of a band.
    if call.masked:
        whole = step.edge
    per_head = (
        count.query_blocks * (step.start + step.finish)
        + count.whole * max(whole, transfer)
        + count.edge * max(step.edge, transfer)
        + count.steps * step.fixed
        + copies(call, blocks, generation) * copy_cycles
    )
    return call.heads * per_head


def copies(call: KernelCall, blocks: Blocks, generation: str) -> int:
    """Copies between memories that the kernel starts for each head, as far as they
    count; none with a band.
    """
    # With a band, the lines through measured steps are further off than copies could
    # decide between sizes.
    if call.has_band:
        return 0
    count = visits(call, blocks)
    rounds = rounds_of_keys(call, blocks, generation)
    fetches = count.steps // rounds
    # The next block of queries finds the same keys in place.
    if fetches == count.query_blocks:
        fetches = 1
    return _COPIES_OF_KEYS * fetches + _COPIES_OF_QUERIES * count.query_blocks


def rounds_of_keys(call: KernelCall, blocks: Blocks, generation: str) -> int:
    """How many blocks of keys a step of the kernel fetches together, and computes in a
    loop; one if there is a band.

    Starting to fetch costs some hundred cycles, whatever is fetched, and the loop a
    dozen. The rounds divide the blocks evenly, so they add no padding.
    """
    # Short calls have few steps, and the program needs the memory for hidden states.
    if call.has_band or call.queries <= SHORT:
        return 1
    limit = vmem_limit(generation)
    # Where there is little memory, spilled registers take what is left.
    if limit <= SMALL_VMEM:
        return 1
    count = -(-call.keys // blocks.key)
    divisors = (rounds for rounds in range(count, 1, -1) if count % rounds == 0)
    for rounds in divisors:
        step = blocks._replace(key=rounds * blocks.key)
        if vmem_bytes(call, step) <= limit * 3 // 4:
            return rounds
    return 1


def vmem_bytes(call: KernelCall, blocks: Blocks) -> int:
    """Vector memory that the kernel's windows and scores take, without registers that
    are spilled.
    """
    # Lanes are padded.
    dim, width = (-(-size // LANES) * LANES for size in (call.head_dim, call.value_dim))
    inputs = (blocks.query + blocks.key) * dim + blocks.key * call.value_dim
    outputs = blocks.query * (width + 2)
    # Twice: one block is processed while the next arrives.
    windows = 2 * (inputs + outputs) * call.itemsize
    running = (call.value_dim + 16) * blocks.query * 4
    scores = blocks.compute * blocks.query * 4
    return windows + running + 9 * scores // 4


def vmem_limit(generation: str) -> int:
    """Vector memory in bytes that a kernel may take on a generation, the rest being
    left to the program around it.
    """
    capacity = GENERATIONS[generation].vmem
    if capacity <= SMALL_VMEM:
        return capacity
    return capacity * 7 // 8


def vmem_budget(generation: str) -> int:
    """The most that `vmem_bytes` may be: the limit, and on v4 three quarters of it."""
    limit = vmem_limit(generation)
    # Spilled registers come on top. On v4, with 16 MiB in all, they have taken up to 5.
    if limit <= SMALL_VMEM:
        return limit * 3 // 4
    return limit
