"""Blocks that a kernel's grid brings in, against index maps that Python runs step by step."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpuport.topology import kernels

TABLE = np.array([3, 3, 0, 5, 1, 1, 1, 2], np.int32)
# Of three places in a grid and a table, as Python and as jax run them.
MAPS = {
    "as it is": lambda i, j, k, t: (i, j),
    "transposed": lambda i, j, k, t: (j, i),
    "the same": lambda i, j, k, t: (0, 0),
    "the last axis": lambda i, j, k, t: (k, 0),
    "some of it": lambda i, j, k, t: (i * 2 + 1, k // 2),
    "no more than": lambda i, j, k, t: (jnp.minimum(i, k), jnp.maximum(j - 1, 0)),
    "where": lambda i, j, k, t: (jnp.where(k <= i, k, 0), lax.rem(i + k, 3)),
    "divided": lambda i, j, k, t: (lax.div(i - k, 2) + 4, (k > 1).astype(jnp.int32)),
    "from the table": lambda i, j, k, t: (t[k], t[j]),
    "from the table's table": lambda i, j, k, t: (t[t[i]], k),
}


def made(maps, grid, block, table: np.ndarray | None = TABLE, dims=(40, 24), dtype=jnp.bfloat16):
    """A kernel of one operand that does nothing, traced; with a table that is an argument, or a constant."""

    def nothing(*_) -> None:
        return None

    def call(x, given):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=grid, in_specs=[pl.BlockSpec(block, maps)],
            out_specs=pl.BlockSpec((8, 128), lambda *_: (0, 0)),
        )  # fmt: skip
        out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        return pl.pallas_call(nothing, out_shape=out, grid_spec=spec)(given, x)

    x = jax.ShapeDtypeStruct(dims, dtype)
    if table is None:
        return kernels.count_work(jax.make_jaxpr(call)(x, jax.ShapeDtypeStruct((8,), jnp.int32)))
    return kernels.count_work(jax.make_jaxpr(lambda x: call(x, jnp.asarray(table)))(x))


def stepped(maps, grid, block, dims=(40, 24)) -> int:
    """Bytes of the blocks that differ from those of the step before."""
    before, total = None, 0
    for place in itertools.product(*map(range, grid)):
        index = tuple(int(one) for one in maps(*(jnp.int32(one) for one in place), TABLE))
        if index != before:
            total += math.prod(
                min(one, max(0, dim - at * one)) for at, one, dim in zip(index, block, dims, strict=True)
            )
        before = index
    return 2 * total


@pytest.mark.parametrize("name", MAPS)
@settings(deadline=None, max_examples=3)
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)),
    block=st.sampled_from([(8, 8), (16, 24)]),
)
def test_a_block_counts_when_its_index_changes(name, grid, block) -> None:
    [call] = made(MAPS[name], grid, block).calls
    assert call.counted.bound is None
    expected = stepped(MAPS[name], grid, block)
    assert call.counted.read == (32, expected)
    assert call.counted.written == (8 * 128 * 4,)
    assert call.counted.nbytes == 32 + expected + 4096


def test_an_index_from_an_argument_may_change_at_each_step_of_its_axis() -> None:
    whole = 4 * 3 * 4 * 8 * 8 * 2
    for maps, share in [
        (MAPS["from the table"], 1),
        (lambda i, j, k, t: (t[j], 0), 4),
        (lambda i, j, k, t: (t[0], 0), 4 * 3 * 4),
    ]:
        [call] = made(maps, (4, 3, 4), (8, 8), table=None).calls
        assert call.counted.read == (32, whole / share)
        assert call.counted.bound == "at most"


def test_a_grid_too_long_to_look_at_counts_by_its_axes() -> None:
    [call] = made(lambda i, j, k, t: (i, j), (1 << 8, 1 << 8, 1 << 8), (8, 8)).calls
    assert call.counted.read == (32, (1 << 16) * 8 * 8 * 2)
    assert call.counted.bound == "at most"


def test_numbers_of_four_bits_take_half_a_byte() -> None:
    [call] = made(MAPS["as it is"], (2, 3, 1), (8, 8), dtype=jnp.int4).calls
    assert call.counted.read == (32, 2 * 3 * 8 * 8 / 2)


def test_a_batch_that_vmap_adds_to_the_grid() -> None:
    def product(x, y, out) -> None:
        @pl.when(pl.program_id(0) < 2)
        def _() -> None:
            out[...] = x[...] @ y[...]

    def call(x, y):
        return pl.pallas_call(
            product, out_shape=jax.ShapeDtypeStruct((64, 128), jnp.float32), grid=(4,),
            in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0)), pl.BlockSpec((128, 128), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((16, 128), lambda i: (i, 0)),
        )(x, y)  # fmt: skip

    x, y = jax.ShapeDtypeStruct((5, 64, 128), jnp.float32), jax.ShapeDtypeStruct((128, 128), jnp.float32)
    [found] = kernels.count_work(jax.make_jaxpr(jax.vmap(call, (0, None)))(x, y)).calls
    assert found.counted.bound is None
    assert found.counted.flops == 5 * 2 * 2 * 16 * 128 * 128
    assert found.counted.read == (5 * 64 * 128 * 4, 128 * 128 * 4)
    assert found.counted.written == (5 * 64 * 128 * 4,)


def test_a_grid_whose_size_is_an_argument_counts_once_at_least() -> None:
    def product(x, out) -> None:
        out[...] = x[...] @ x[...]

    def call(x, size):
        spec = pl.BlockSpec((128, 128), lambda i: (0, 0))
        out = jax.ShapeDtypeStruct((128, 128), jnp.float32)
        return pl.pallas_call(product, out_shape=out, grid=(size,), in_specs=[spec], out_specs=spec)(x)

    x = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    [call_of_any] = kernels.count_work(jax.make_jaxpr(call)(x, jax.ShapeDtypeStruct((), jnp.int32))).calls
    assert (call_of_any.counted.flops, call_of_any.counted.bound) == (2 * 128**3, "at least")
    [known] = kernels.count_work(jax.make_jaxpr(lambda x: call(x, jnp.int32(7)))(x)).calls
    assert (known.counted.flops, known.counted.bound) == (7 * 2 * 128**3, None)
