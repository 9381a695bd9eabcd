"""How often each part of the kernel's step runs, against the kernel's own layout and against a mask in full."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport.attention.kernel_cost import (
    Blocks,
    KernelCall,
    Row,
    Step,
    copies,
    cycles,
    rounds_of_keys,
    visits,
    vmem_bytes,
    vmem_limit,
)
from tpuport.attention.kernel_layout import Layout

sizes = st.sampled_from([128, 256, 384, 640])
edges = st.none() | st.integers(0, 1500)


def call_of(queries: int, keys: int, left=None, right=None, offset: int = 0, **more) -> KernelCall:
    return KernelCall(more.pop("heads", 1), queries, keys, 128, 128, 2, left, right, offset, **more)


@settings(settings.get_profile("few"), deadline=None)
@given(
    queries=st.integers(1, 1500), keys=st.integers(1, 1500), rows=sizes, block=sizes, left=edges, right=edges,
    offset=st.integers(-1500, 1500),
)  # fmt: skip
def test_visits_are_those_of_the_mask_in_full(queries, keys, rows, block, left, right, offset) -> None:
    call = call_of(queries, keys, left, right, offset)
    count = visits(call, Blocks(rows, block, 128))
    row_blocks, key_blocks = -(-queries // rows), -(-keys // block)
    # The last block of queries is full: what is over is computed, and cut off.
    # In numpy, because `Mask.to_dense` would be compiled for every size.
    distance = np.arange(key_blocks * block)[None] - (np.arange(row_blocks * rows)[:, None] + offset)
    dense = np.broadcast_to(np.arange(key_blocks * block) < keys, distance.shape).copy()
    if left is not None:
        dense &= distance >= -left
    if right is not None:
        dense &= distance <= right
    tiles = dense.reshape(row_blocks, rows, key_blocks, block)
    touched, full = tiles.any((1, 3)), tiles.all((1, 3))
    if not call.has_band:
        assert count == (row_blocks, row_blocks * key_blocks, 0, row_blocks * key_blocks)
        return
    assert count.whole == full.sum()
    # Between a row's first and last block all are visited; a band of rows cannot leave one out.
    assert count.whole + count.edge >= touched.sum()
    assert count.whole + count.edge <= touched.sum() + row_blocks
    layout = Layout((rows, block, 128), queries, keys, left, right, 1.0, None, late=True)
    assert count.steps == row_blocks * layout.steps(offset)


def test_causal_visits_half_the_blocks_and_the_diagonal() -> None:
    count = visits(call_of(8192, 8192, right=0), Blocks(1024, 1024, 512))
    assert count == (8, 28, 8, 64)


def test_a_window_visits_a_band() -> None:
    count = visits(call_of(8192, 8192, left=1023, right=0), Blocks(1024, 1024, 512))
    assert count.whole == 0
    assert count.edge == 15
    assert count.steps == 16


STEP = Step(start=10, finish=20, fixed=5, whole=5000, edge=6000)
# Cycles in which a core starts a copy: 0.12 us at the clock of v6e.
COPY = 0.12e-6 * 918e12 / (1 << 19)


def test_cycles_are_each_part_as_often_as_it_runs() -> None:
    blocks = Blocks(1024, 1024, 512)

    def counted(*lengths: int, **more) -> float:
        return cycles(call_of(*lengths, **more), blocks, STEP, "v6e")

    # Keys and values of eight blocks, and queries, results and their log-sum-exp of two.
    copied = (2 * 8 + 3 * 2) * COPY
    assert counted(2048, 4096) == pytest.approx(2 * 30 + 8 * 5000 + 8 * 5 + copied)
    assert counted(2048, 4096, heads=6) == pytest.approx(6 * (2 * 30 + 8 * 5000 + 8 * 5 + copied))
    assert counted(2048, 4096, masked=True) == pytest.approx(2 * 30 + 8 * 6000 + 8 * 5 + copied)
    assert counted(2048, 2048, right=0) == 2 * 30 + 5000 + 2 * 6000 + 4 * 5


def test_memory_is_the_limit_of_small_blocks_of_queries() -> None:
    step = Step(0, 0, 0, 100, 100)
    read = 1024 * (128 + 128) * 2
    counted = cycles(call_of(128, 1024), Blocks(128, 1024, 512), step, "v6e")
    assert counted == pytest.approx(read / 937 + 5 * COPY)


def test_blocks_of_keys_that_a_step_fetches_together_are_copied_once() -> None:
    call, queries = call_of(112_640, 112_640, heads=4), 110 * 3
    assert copies(call, Blocks(1024, 6656, 512), "v6e") == 2 * 110 * 17 + queries, "17 blocks have no rounds"
    assert copies(call, Blocks(1024, 8192, 512), "v6e") == 2 * 110 * 2 + queries, "two steps of seven rounds"
    # One step has all keys, which stay in place for the next block of queries.
    assert copies(call_of(8192, 8192), Blocks(1024, 8192, 512), "v6e") == 2 + 8 * 3


def test_copies_are_those_of_the_schedule() -> None:
    """Of Flux's attention, 24 heads over 4,608 tokens: the schedule that the compiler wrote for v6e starts 336."""
    assert 24 * copies(call_of(4608, 4608), Blocks(1152, 4608, 512), "v6e") == 336


def test_a_step_from_a_schedule() -> None:
    assert Step.of(1000, (100, 200), has_band=False) == Step(100, 200, 0, 700, 700)
    assert Step.of(2000, (100, 500, 700, 200), has_band=True) == Step(100, 200, 500, 500, 700)
    # Sections that are not the kernel's: nothing is left out.
    for sections in ((), (100,), (1, 2, 3)):
        for has_band in (False, True):
            step = Step.of(1000, sections, has_band=has_band)
            assert (step.whole, step.edge, step.start, step.finish, step.fixed) == (1000, 1000, 0, 0, 0)


def test_a_row_goes_through_its_points() -> None:
    steps = {2: Step(10, 20, 0, 300, 400), 6: Step(10, 20, 0, 700, 1000), 8: Step(10, 20, 0, 1000, 1400)}
    row = Row.through(1024, 512, steps)
    assert all(row.step(chunks) == step for chunks, step in steps.items())
    assert [row.step(chunks).whole for chunks in (1, 3, 7, 10)] == [200, 400, 850, 1300]
    assert row.step(4).edge == 700
    assert Row.from_json(json.loads(json.dumps(dataclasses.asdict(row)))) == row


def test_vector_memory() -> None:
    small, large = (
        vmem_bytes(call_of(8192, 8192), Blocks(*b)) for b in ((128, 128, 128), (2048, 8192, 1024))
    )
    assert small < 2 << 20
    # The compiler of v4 said 29.03 MiB.
    assert 29 << 20 < large < 35 << 20
    assert vmem_limit("v4") == 16 << 20
    assert vmem_limit("v5p") < vmem_limit("v6e") < 128 << 20


def test_rounds_divide_the_blocks_of_keys_and_fit() -> None:
    call, blocks = KernelCall(10, 75_600, 75_600, 128, 128, 2), Blocks(1024, 7680, 512)
    assert rounds_of_keys(call, blocks, "v6e") == 10, "all keys and values of a head take 39 MB, twice"
    assert rounds_of_keys(call, blocks, "tpu7x") == 2, "half as much memory"
    assert rounds_of_keys(dataclasses.replace(call, keys=7680), blocks, "v6e") == 1
    assert rounds_of_keys(dataclasses.replace(call, keys=6 * 7680), blocks, "v6e") == 6
    assert rounds_of_keys(dataclasses.replace(call, keys=13 * 7680), blocks, "v6e") == 1
    assert rounds_of_keys(dataclasses.replace(call, right=0), blocks, "v6e") == 1
    assert rounds_of_keys(call, blocks, "v4") == 1, "16 MiB in all"
    assert rounds_of_keys(dataclasses.replace(call, queries=4096), blocks, "v6e") == 1, "few steps"
