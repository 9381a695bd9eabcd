"""Searching the attention kernel's block sizes with the compiler of a described TPU.

A step's schedule depends on the block sizes, the dtype, the head dimension and the kind
of mask, not on the lengths: so each is compiled once, at lengths of a few blocks, and
kept; the shape only decides how often it runs. First the steps of every size of a grid
are compiled with few chunks of keys and with more, and a line through the two predicts
the rest; then those that the lines rank first for the shape are compiled themselves,
until the first has been compiled.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tpuport.attention.block_sizes import block_sizes, choose_blocks, rank_blocks
from tpuport.attention.kernel_cost import (
    ITEMSIZE,
    Blocks,
    KernelCall,
    Row,
    Step,
    cycles,
    visits,
    vmem_bytes,
    vmem_limit,
)
from tpuport.attention.tuning.bundle_cache import Measurement, Measurements
from tpuport.errors import PortError
from tpuport.hardware import assume_generation
from tpuport.libraries.attention_shapes import Shape

DTYPES: Final = {"bf16": "bfloat16", "f32": "float32"}
# Chunks of keys for each block of queries. Blocks of 4096 queries (tried on v6e) and
# chunks of 1024 keys (v5e and v6e) spilled more and gained nothing; small chunks serve
# short keys.
_GRID: Final = {
    128: (128, 512),
    256: (128, 512),
    512: (128, 256, 512),
    1024: (128, 256, 512),
    1152: (256, 512),
    1536: (256, 512),
    2048: (256, 512),
}
_FEW_CHUNKS: Final = 2
# How many of the sizes that the lines rank first are compiled in each round, after
# which the lines are drawn again through them; the last rounds compile only what would
# be chosen.
_ROUNDS: Final = (3, 3, 0, 0, 0)
_PROGRAM: Final = "tpuport.attention.tuning.search:program"
# The JSON of a search lists no more candidates than anybody reads.
_LISTED: Final = 10

Progress = Callable[[str, int, int], None]


class Variant(NamedTuple):
    """Block sizes, and whether the keys are not a multiple of their block."""

    blocks: Blocks
    tail: bool


# What was measured of one kind of kernel.
Known = dict[Variant, Measurement]


@dataclass(frozen=True)
class Task:
    """What is tuned: a shape, how it is masked, and in which dtype.

    Attributes:
        window: the most keys that a query sees, including its own; None is all.
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
        """The band's right, as in `Mask`; a window ends with the query's own key."""
        return 0 if self.has_band else None

    @property
    def has_band(self) -> bool:
        """Whether positions decide what is visible."""
        return self.causal or self.window is not None

    @property
    def call(self) -> KernelCall:
        """What the cost depends on."""
        shape = self.shape
        return KernelCall(
            shape.batch * shape.heads, shape.queries, shape.keys, shape.head_dim, shape.head_dim,
            ITEMSIZE[self.dtype], self.left, self.right,
            masked=not self.has_band and self.padding == "segment_ids",
        )  # fmt: skip

    @property
    def kind(self) -> dict[str, Any]:
        """The kind of kernel, whatever the sizes are: arguments of `program`."""
        band = "none"
        if self.has_band:
            band = "causal"
        # A window is causal too.
        if self.window is not None:
            band = "window"
        return {
            "head_dim": self.shape.head_dim,
            "dtype": self.dtype,
            "band": band,
            "padding": self.padding,
        }

    def variant(self, blocks: Blocks) -> Variant:
        """The variant of the kernel that this shape runs with these sizes."""
        return Variant(blocks, self.shape.keys % blocks.key != 0)

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

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "blocks": list(self.blocks),
            "bundles": self.bundles,
            "steps": self.steps,
            "cycles": round(self.cycles),
            "matrix_unit": round(self.matrix_unit, 3),
        }


@dataclass(frozen=True)
class Search:
    """The result for one task.

    Attributes:
        default: what `block_sizes` chooses today.
        choice: what it will choose with these results in its data file.
        candidates: the fastest first.
        failures: how many did not compile, by reason.
        rows: the steps, for a data file.
    """

    task: Task
    default: Blocks
    choice: Blocks
    candidates: list[Candidate]
    failures: dict[str, int]
    rows: list[Row]

    @property
    def best(self) -> Candidate:
        """The fastest."""
        return self.candidates[0]

    def of(self, blocks: Blocks) -> Candidate | None:
        """The candidate with these sizes, if it compiled."""
        by_blocks = {candidate.blocks: candidate for candidate in self.candidates}
        return by_blocks.get(blocks)


def program(
    head_dim: int,
    dtype: str,
    band: str,
    padding: str,
    blocks: list[int],
    tail: bool,
    generation: str,
) -> tuple[Callable, tuple]:
    """(attention, abstract arguments) with a few blocks of these sizes, for
    `bundle_compiler.Compiler`.

    Args:
        band: "none", "causal" or "window".
        padding: "none", "exact" or "segment_ids".
        tail: whether the keys are not a multiple of their block.
    """
    import jax
    import jax.numpy as jnp

    from tpuport.attention.flash import flash
    from tpuport.attention.mask import Mask

    rows, keys, compute = blocks
    length = 4 * keys - 64 * tail
    queries = max(4, -(-4 * keys // rows)) * rows
    band_mask = {
        "none": Mask(),
        "causal": Mask(right=0),
        "window": Mask(left=2 * keys, right=0),
    }[band]

    def attention(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        is_real: jax.Array | None = None,
    ) -> Any:
        mask = dataclasses.replace(band_mask, keys_BT=is_real)
        with assume_generation(generation):
            return flash(
                query,
                key,
                value,
                mask,
                scale=head_dim**-0.5,
                padding=mode,
                blocks=(rows, keys, compute),
                # The body of a loop is in the schedule once, and hides a step's parts.
                in_rounds=False,
            )

    def array(heads: int, n: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2, heads, n, head_dim), jnp.dtype(dtype))

    # Two rows and two groups of heads: with one, the index of every operand would be
    # simpler than it usually is.
    arguments = [array(4, queries), array(2, length), array(2, length)]
    mode = "exact"
    if padding != "none":
        mode = padding
        arguments.append(jax.ShapeDtypeStruct((2, length), jnp.bool_))
    return attention, tuple(arguments)


def search_all(
    tasks: list[Task],
    generation: str,
    measurements: Measurements,
    progress: Progress = lambda *_: None,
) -> list[Search]:
    """Measure block sizes for several tasks, as `search`; tasks of the same kind share
    their measurements.
    """
    known: dict[str, Known] = {}

    def search_once() -> list[Search]:
        return [
            search(
                task,
                generation,
                measurements,
                progress,
                known.setdefault(repr(task.kind), {}),
            )
            for task in tasks
        ]

    # A later task may measure what changes the choice of an earlier one: repeat until
    # nothing new is measured.
    count = -1
    searches = search_once()
    while len(tasks) > 1 and count != sum(map(len, known.values())):
        count = sum(map(len, known.values()))
        searches = search_once()
    return searches


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
        progress: called with what is being done, how many are done, and how many there
            are.
        known: what was measured for tasks of the same kind, which is added to.

    Raises:
        PortError: no candidate compiled.
    """
    if known is None:
        known = {}

    def measure(title: str, variants: list[Variant]) -> None:
        for done, variant in enumerate(variants):
            progress(title, done, len(variants))
            sizes = {
                "blocks": list(variant.blocks),
                "tail": variant.tail,
                "generation": generation,
            }
            known[variant] = measurements.measure(_PROGRAM, task.kind | sizes)

    measure(
        "steps",
        [Variant(blocks, False) for blocks in _grid_sizes(task.call, generation)],
    )
    default = task.default(generation)
    for count in _ROUNDS:
        variants = map(
            task.variant, [default, *_finalists(task, generation, known, count)]
        )
        measure(
            f"candidates for {task.shape.name}", [v for v in variants if v not in known]
        )
    return _summarize(task, generation, default, known)


def _summarize(task: Task, generation: str, default: Blocks, known: Known) -> Search:
    candidates = _candidates(task, generation, known)
    errors = [measurement.failure for measurement in known.values()]
    failures = Counter(map(_reason, filter(None, errors)))
    if not candidates:
        raise PortError(
            f"none of {len(known)} block sizes compiles: {'; '.join(failures)}",
            where=f"--shape {task.shape.name}",
            fix="this head dimension and dtype do not fit the kernel; attention runs in XLA instead",
        )
    rows = _rows(task, known)
    choice = candidates[0].blocks
    # Without a line nothing can be predicted.
    if rows:
        choice = choose_blocks(task.call, tuple(rows), generation)
    return Search(task, default, choice, candidates, dict(failures), rows)


def _grid_sizes(call: KernelCall, generation: str) -> Iterator[Blocks]:
    """Sizes that give the lines: few chunks and more, for each block of queries that
    the call can use.
    """
    largest = min((size for size in _GRID if size >= call.queries), default=max(_GRID))
    for query, chunk_sizes in _GRID.items():
        # A larger block would be padding.
        if query > largest:
            continue
        for compute in chunk_sizes:
            many_chunks = 8
            # Of large chunks, so many do not fit.
            if query * compute > 1024 * 512:
                many_chunks = 4
            for chunks in (_FEW_CHUNKS, many_chunks):
                blocks = Blocks(query, chunks * compute, compute)
                # Twice the limit, because it is an estimate: the compiler decides about
                # what is near.
                if vmem_bytes(call, blocks) <= 2 * vmem_limit(generation):
                    yield blocks


def _finalists(
    task: Task, generation: str, known: Known, count: int
) -> Iterable[Blocks]:
    """Sizes to compile as the shape needs them: what the lines rank first, what they
    choose, and the best so far.
    """
    rows = tuple(_rows(task, known))
    if not rows:
        return []
    first = [
        candidate.blocks
        for candidate in rank_blocks(task.call, rows, generation)[:count]
    ]
    best = [candidate.blocks for candidate in _candidates(task, generation, known)[:1]]
    return dict.fromkeys([*first, choose_blocks(task.call, rows, generation), *best])


def _rows(task: Task, known: Known) -> list[Row]:
    """The lines through what compiled, from at least two points each."""
    steps_by_size: dict[tuple[int, int], dict[int, Step]] = defaultdict(dict)
    for (blocks, tail), measurement in _compiled(known).items():
        # Of two variants, the one without a tail is on the line.
        if not tail or Variant(blocks, False) not in known:
            steps_by_size[blocks.query, blocks.compute][
                blocks.key // blocks.compute
            ] = _step(task, measurement)
    return [
        Row.through(*size, steps)
        for size, steps in sorted(steps_by_size.items())
        if len(steps) > 1
    ]


def _candidates(task: Task, generation: str, known: Known) -> list[Candidate]:
    """What compiled, the fastest first; of two variants, the one that the shape
    runs.
    """
    compiled = _compiled(known)
    every_size = dict.fromkeys(variant.blocks for variant in compiled)
    candidates = [
        _candidate(task, blocks, compiled, generation) for blocks in every_size
    ]
    return sorted(
        candidates, key=lambda candidate: (candidate.cycles, candidate.bundles)
    )


def _compiled(known: Known) -> Known:
    return {
        variant: measurement
        for variant, measurement in known.items()
        if measurement.failure is None
    }


def _step(task: Task, measurement: Measurement) -> Step:
    return Step.of(measurement.bundles, measurement.sections, has_band=task.has_band)


def _candidate(
    task: Task, blocks: Blocks, compiled: Known, generation: str
) -> Candidate:
    variant = task.variant(blocks)
    # A tail changes little: what was measured without one stands for it, and the other
    # way round.
    measurement = compiled.get(variant) or compiled[Variant(blocks, not variant.tail)]
    steps = task.call.heads * visits(task.call, blocks).steps
    total = cycles(task.call, blocks, _step(task, measurement), generation)
    return Candidate(blocks, measurement.bundles, steps, total, measurement.matrix_unit)


def _reason(failure: str) -> str:
    """The compiler's line without what differs from one candidate to the next."""
    if "vmem" in failure.lower():
        return "does not fit into vector memory"
    return failure[:160]


def search_to_json(search: Search) -> dict[str, Any]:
    """The result as plain data: without the steps, which `steps_to_json` gives, and
    with the best candidates only.
    """
    default, choice = search.of(search.default), search.of(search.choice)
    return {
        **dataclasses.asdict(search.task),
        "default": default and default.to_json(),
        "chosen": choice and choice.to_json(),
        "candidates": [
            candidate.to_json() for candidate in search.candidates[:_LISTED]
        ],
        "measured": len(search.candidates),
        "failures": search.failures,
    }


def steps_to_json(search: Search) -> dict[str, Any]:
    """The measured steps, as a `grid` of a data file."""
    task = search.task
    kind = {
        "head_dim": task.shape.head_dim,
        "dtype": task.dtype,
        "has_band": task.has_band,
    }
    return {**kind, "rows": list(map(dataclasses.asdict, search.rows))}
