"""Searching the attention kernel's block sizes with the compiler of a TPU that is not there.

A step's schedule depends on the block sizes, the dtype, the head dimension and the kind of mask, not on the lengths:
so each is compiled once, at lengths of a few blocks, and kept; how often it runs is a matter of counting. First the
steps of every size of a grid are compiled with few chunks of keys and with more, which gives the line between; then
those that the lines rank first for the shape are compiled themselves, until what is first has been compiled.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tpuport.attention.block_sizes import block_sizes, choose_blocks, rank_blocks
from tpuport.attention.kernel_cost import (
    Blocks,
    KernelCall,
    Row,
    Step,
    cycles,
    visits,
    vmem_bytes,
    vmem_limit,
)
from tpuport.attention.tuning.attention_shapes import Shape
from tpuport.attention.tuning.bundle_cache import Measurement, Measurements
from tpuport.errors import PortError
from tpuport.hardware import assume_generation

DTYPES: Final = {"bf16": "bfloat16", "f32": "float32"}
PADDING: Final = ("none", "exact", "segment_ids")
# Chunks of keys for each block of queries. Blocks of 4096 queries (tried on v6e) and chunks of 1024 keys (v5e and v6e)
# spilled more and gained nothing; small chunks serve short keys.
_GRID: Final = {
    128: (128, 512),
    256: (128, 512),
    512: (128, 256, 512),
    1024: (128, 256, 512),
    1152: (256, 512),
    1536: (256, 512),
    2048: (256, 512),
}
_FEW: Final = 2
# Of the sizes that the lines rank first, so many are compiled themselves, and the lines drawn again through them; in
# the last rounds no more than what would be chosen.
_ROUNDS: Final = (3, 3, 0, 0, 0)
_PROGRAM: Final = "tpuport.attention.tuning.search:program"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Task:
    """What is tuned: a shape, how it is masked, and in which dtype.

    Attributes:
        window: keys that a query sees at most, its own included; None is all.
        padding: whether keys are padded, and how they are masked.
    """

    shape: Shape
    dtype: str
    causal: bool = False
    window: int | None = None
    padding: str = "none"

    @property
    def left(self) -> int | None:
        """The band's left, as in `Mask`."""
        return None if self.window is None else self.window - 1

    @property
    def right(self) -> int | None:
        """The band's right, as in `Mask`; a window is one of the keys up to the query's own."""
        return 0 if self.causal or self.window is not None else None

    @property
    def has_band(self) -> bool:
        """Whether positions decide what is seen."""
        return self.right is not None

    @property
    def call(self) -> KernelCall:
        """What the cost depends on."""
        shape = self.shape
        return KernelCall(
            shape.batch * shape.heads, shape.queries, shape.keys, shape.head_dim, shape.head_dim,
            2 if self.dtype == "bfloat16" else 4, self.left, self.right,
            masked=not self.has_band and self.padding == "segment_ids",
        )  # fmt: skip

    @property
    def kind(self) -> dict[str, Any]:
        """The kind of kernel, whatever the sizes are: arguments of `program`."""
        band = "none" if not self.has_band else "causal" if self.window is None else "window"
        return {"head_dim": self.shape.head_dim, "dtype": self.dtype, "band": band, "padding": self.padding}

    def sized(self, blocks: Blocks) -> tuple[Blocks, bool]:
        """The sizes, and whether the keys have a tail with them."""
        return blocks, self.shape.keys % blocks.key != 0

    def default(self, generation: str) -> Blocks:
        """What `block_sizes` chooses for it."""
        call = self.call
        return block_sizes(
            heads=call.heads, queries=call.queries, keys=call.keys, head_dim=call.head_dim,
            value_dim=call.value_dim, dtype=self.dtype, masked=self.has_band or call.masked,
            left=self.left, right=self.right, generation=generation,
        )  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """Block sizes that compiled, with what the whole call costs.

    Attributes:
        blocks: sizes.
        bundles: scheduled for one step, all its parts together.
        steps: of the grid.
        cycles: of the whole call, each part of a step as often as it runs.
        matrix_unit: share of its slots that the matrix units use.
    """

    blocks: Blocks
    bundles: int
    steps: int
    cycles: int | float
    matrix_unit: float


@dataclass(frozen=True)
class Search:
    """The result for one task.

    Attributes:
        default: what `block_sizes` chooses today.
        chosen: what it will choose with these results in its data file.
        candidates: the fastest first.
        failures: how many did not compile, by reason.
        rows: the steps, for a data file.
    """

    task: Task
    default: Blocks
    chosen: Blocks
    candidates: list[Candidate]
    failures: dict[str, int]
    rows: list[Row]

    @property
    def best(self) -> Candidate:
        """The fastest."""
        return self.candidates[0]

    def of(self, blocks: Blocks) -> Candidate | None:
        """The candidate with these sizes, if it compiled."""
        return next((candidate for candidate in self.candidates if candidate.blocks == blocks), None)


# What was measured of one kind of kernel: by sizes, and whether the keys had a tail.
Known = dict[tuple[Blocks, bool], Measurement]


def program(
    head_dim: int, dtype: str, band: str, padding: str, blocks: list[int], tail: bool, generation: str
) -> tuple[Callable, tuple]:
    """(attention, abstract arguments) with a few blocks of given sizes, for `bundles.Compiler`.

    Args:
        band: "none", "causal" or "window".
        padding: "none", "exact" or "segment_ids".
        tail: whether the keys are no multiple of their block.
    """
    import jax
    import jax.numpy as jnp

    from tpuport.attention.flash import flash
    from tpuport.attention.mask import Mask

    rows, keys, _ = blocks
    length = 4 * keys - (64 if tail else 0)
    queries = max(4, -(-4 * keys // rows)) * rows
    left = 2 * keys if band == "window" else None
    right = None if band == "none" else 0

    def attention(query: jax.Array, key: jax.Array, value: jax.Array, *real: jax.Array) -> Any:
        mask = Mask(left=left, right=right, offset=0, keys_BT=real[0] if real else None)
        mode = "exact" if padding == "none" else padding
        with assume_generation(generation):
            return flash(
                query, key, value, mask, scale=head_dim**-0.5, padding=mode, blocks=(rows, keys, blocks[2])
            )

    # Two rows and two groups of heads: with one, the index of every operand would be simpler than it mostly is.
    shape = lambda heads, n: jax.ShapeDtypeStruct((2, heads, n, head_dim), jnp.dtype(dtype))  # noqa: E731
    real = () if padding == "none" else (jax.ShapeDtypeStruct((2, length), jnp.bool_),)
    return attention, (shape(4, queries), shape(2, length), shape(2, length), *real)


def search_all(
    tasks: list[Task], generation: str, measurements: Measurements, progress: Progress = lambda *_: None
) -> list[Search]:
    """Measure block sizes for several tasks, as `search`; what one of them measures, the others know."""
    known: dict[str, Known] = {}

    def once() -> list[Search]:
        return [
            search(task, generation, measurements, progress, known.setdefault(repr(task.kind), {}))
            for task in tasks
        ]

    found, before = once(), -1
    while len(tasks) > 1 and before != (before := sum(map(len, known.values()))):
        found = once()
    return found


def search(
    task: Task,
    generation: str,
    measurements: Measurements,
    progress: Progress = lambda *_: None,
    known: Known | None = None,
) -> Search:
    """Measure block sizes for a task.

    Args:
        measurements: compiles what it does not know yet.
        progress: called with what is being done, how many are done, and how many there are.
        known: what was measured for tasks of the same kind, which is added to.

    Raises:
        PortError: no candidate compiled.
    """
    known = {} if known is None else known

    def measure(what: str, wanted: list[tuple[Blocks, bool]]) -> None:
        for done, (blocks, tail) in enumerate(wanted):
            progress(what, done, len(wanted))
            arguments = {**task.kind, "blocks": list(blocks), "tail": tail, "generation": generation}
            known[blocks, tail] = measurements.of(_PROGRAM, arguments)

    measure("steps", [(blocks, False) for blocks in _grid(task.call, generation)])
    default = task.default(generation)
    for count in _ROUNDS:
        wanted = map(task.sized, [default, *_finalists(task, generation, known, count)])
        measure(f"candidates for {task.shape.name}", [one for one in wanted if one not in known])
    return _result(task, generation, default, known)


def _result(task: Task, generation: str, default: Blocks, known: Known) -> Search:
    candidates = _candidates(task, generation, known)
    failures: dict[str, int] = {}
    for found in known.values():
        if found.failure is not None:
            failures[_reason(found.failure)] = failures.get(_reason(found.failure), 0) + 1
    if not candidates:
        raise PortError(
            f"none of {len(known)} block sizes compiles: {'; '.join(failures)}",
            where=f"--shape {task.shape.name}",
            fix="this head dimension and dtype do not fit the kernel; attention runs in XLA instead",
        )
    rows = _rows(task, known)
    choice = choose_blocks(task.call, tuple(rows), generation) if rows else candidates[0].blocks
    return Search(task, default, choice, candidates, failures, rows)


def _grid(call: KernelCall, generation: str) -> Iterator[Blocks]:
    """Sizes that give the lines: few chunks and more, for each block of queries that the call can use."""
    enough = min((size for size in _GRID if size >= call.queries), default=max(_GRID))
    for query in (size for size in _GRID if size <= enough):
        for compute in _GRID[query]:
            for chunks in (_FEW, 4 if query * compute > 1024 * 512 else 8):
                blocks = Blocks(query, chunks * compute, compute)
                if vmem_bytes(call, blocks) <= 2 * vmem_limit(generation):
                    yield blocks


def _finalists(task: Task, generation: str, known: Known, count: int) -> list[Blocks]:
    """Sizes to compile as the shape needs them: what the lines rank first, what they choose, and the best so far."""
    rows = tuple(_rows(task, known))
    if not rows:
        return []
    first = [costed.blocks for costed in rank_blocks(task.call, rows, generation)[:count]]
    best = [candidate.blocks for candidate in _candidates(task, generation, known)[:1]]
    return list(dict.fromkeys([*first, choose_blocks(task.call, rows, generation), *best]))


def _rows(task: Task, known: Known) -> list[Row]:
    by_size: dict[tuple[int, int], dict[int, Step]] = {}
    for (blocks, tail), found in known.items():
        steps = by_size.setdefault((blocks.query, blocks.compute), {})
        if found.failure is None and not (tail and (blocks, False) in known):
            steps[blocks.key // blocks.compute] = _step(task, found)
    return [Row.through(*size, by_size[size]) for size in sorted(by_size) if len(by_size[size]) > 1]


def _candidates(task: Task, generation: str, known: Known) -> list[Candidate]:
    """What compiled, the fastest first; without what is larger than the shape."""
    measured: dict[Blocks, Measurement] = {}
    for (blocks, tail), found in known.items():
        if found.failure is None and (blocks not in measured or task.sized(blocks)[1] == tail):
            measured[blocks] = found
    costed = [_candidate(task, blocks, found, generation) for blocks, found in measured.items()]
    return sorted(costed, key=lambda candidate: (candidate.cycles, candidate.bundles))


def _step(task: Task, found: Measurement) -> Step:
    return Step.of(found.bundles, found.sections, has_band=task.has_band)


def _candidate(task: Task, blocks: Blocks, found: Measurement, generation: str) -> Candidate:
    steps = task.call.heads * visits(task.call, blocks).steps
    total = cycles(task.call, blocks, _step(task, found), generation)
    return Candidate(blocks, found.bundles, steps, total, found.matrix_unit)


def _reason(failure: str) -> str:
    """The compiler's line without what differs from one candidate to the next."""
    if "vmem" in failure.lower():
        return "does not fit into vector memory"
    return failure[:160]


def as_json(found: Search) -> dict[str, Any]:
    """The result as data: without the rows, which `grid_of` gives, and with no more candidates than one reads."""
    default, choice = found.of(found.default), found.of(found.chosen)
    return {
        **dataclasses.asdict(found.task),
        "default": default and _candidate_json(default),
        "chosen": choice and _candidate_json(choice),
        "candidates": [_candidate_json(candidate) for candidate in found.candidates[:10]],
        "measured": len(found.candidates),
        "failures": found.failures,
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "blocks": list(candidate.blocks),
        "bundles": candidate.bundles,
        "steps": candidate.steps,
        "cycles": round(candidate.cycles),
        "matrix_unit": round(candidate.matrix_unit, 3),
    }


def grid_of(found: Search) -> dict[str, Any]:
    """The measured steps, as a `grid` of a data file."""
    task = found.task
    kind = {"head_dim": task.shape.head_dim, "dtype": task.dtype, "has_band": task.has_band}
    return {**kind, "rows": [dataclasses.asdict(row) for row in found.rows]}
