"""Products of kernels' bodies, against what the interpreter runs, and against masks in full."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from tpuport.attention.flash import flash
from tpuport.attention.mask import Mask
from tpuport.topology import kernels

PRODUCT = 2 * 8 * 8 * 8
TABLE = np.array([3, 0, 1, 4], np.int32)


def _always(run, i, j, t) -> None:
    run()


def _triangle(run, i, j, t) -> None:
    pl.when(j <= i)(run)


def _nested(run, i, j, t) -> None:
    @pl.when(i > 0)
    def _() -> None:
        pl.when((j == 0) | (j == pl.num_programs(1) - 1))(run)


def _table(run, i, j, t) -> None:
    pl.when(t[j] > i)(run)


def _twice(run) -> None:
    run()
    run()


def _either(run, i, j, t) -> None:
    lax.cond(lax.rem(i + j, 2) == 0, run, functools.partial(_twice, run))


def _switch(run, i, j, t) -> None:
    lax.switch(jnp.minimum(j, 2), [lambda: None, run, functools.partial(_twice, run)])


def _fixed_loop(run, i, j, t) -> None:
    lax.fori_loop(0, 3, lambda _, c: run() or c, 0)


def _loop_with_branches(run, i, j, t) -> None:
    def body(n, c):
        pl.when(n <= i)(run)
        return c

    lax.fori_loop(0, 3, body, 0)


def _loop_to_a_place(run, i, j, t) -> None:
    lax.fori_loop(j, i + 1, lambda _, c: run() or c, 0)


def _loop_to_a_number_of_the_table(run, i, j, t) -> None:
    lax.fori_loop(0, t[i], lambda _, c: run() or c, 0)


def _in_a_scope(run, i, j, t) -> None:
    def scoped(_) -> None:
        pl.when(j < i)(run)

    pl.run_scoped(scoped, pltpu.VMEM((8, 128), jnp.float32))


BODIES = {
    one.__name__.strip("_"): one
    for one in (
        _always, _triangle, _nested, _table, _either, _switch, _fixed_loop, _loop_with_branches, _loop_to_a_place,
        _loop_to_a_number_of_the_table, _in_a_scope,
    )
}  # fmt: skip


def call(body, interpret: bool, estimate: pl.CostEstimate | None = None):
    """A kernel whose body runs a product now and then, and writes down how often."""

    def kernel(table, x, times) -> None:
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when((i == 0) & (j == 0))
        def _() -> None:
            times[...] = jnp.zeros_like(times)

        def run() -> None:
            made = lax.dot_general(x[...], x[...], (((1,), (0,)), ((), ())))
            times[...] += 1 + 0 * made[0, 0].astype(jnp.int32)

        body(run, i, j, table)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4, 4), in_specs=[pl.BlockSpec((8, 8), lambda i, j, t: (0, 0))],
        out_specs=pl.BlockSpec((1, 1), lambda i, j, t: (0, 0)),
    )  # fmt: skip
    out = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return pl.pallas_call(kernel, out_shape=out, grid_spec=spec, interpret=interpret, cost_estimate=estimate)


@pytest.mark.parametrize("name", BODIES)
def test_as_many_products_count_as_the_interpreter_does(name) -> None:
    x = jnp.zeros((8, 8), jnp.float32)
    times = int(call(BODIES[name], interpret=True)(jnp.asarray(TABLE), x)[0, 0])
    traced = jax.make_jaxpr(lambda x: call(BODIES[name], interpret=False)(jnp.asarray(TABLE), x))(x)
    [found] = kernels.count_work(traced).calls
    assert (found.counted.flops, found.counted.bound) == (times * PRODUCT, None)
    assert 0 < times < 4 * 4 * 5


@pytest.mark.parametrize(
    ("name", "times", "bound"),
    [
        ("table", 16, "at most"), ("loop_to_a_number_of_the_table", 16, "at least"),
        ("triangle", 10, None), ("either", 24, None),
    ],
)  # fmt: skip
def test_what_an_argument_decides_is_a_bound(name, times, bound) -> None:
    arguments = jax.ShapeDtypeStruct((4,), jnp.int32), jax.ShapeDtypeStruct((8, 8), jnp.float32)
    [found] = kernels.count_work(jax.make_jaxpr(call(BODIES[name], False))(*arguments)).calls
    assert (found.cost.flops, found.cost.bound, found.cost.source) == (times * PRODUCT, bound, "counted")
    estimate = pl.CostEstimate(flops=99 * PRODUCT, transcendentals=0, bytes_accessed=5)
    [found] = kernels.count_work(jax.make_jaxpr(call(BODIES[name], False, estimate))(*arguments)).calls
    if bound is None:
        assert (found.cost.flops, found.cost.source) == (times * PRODUCT, "counted"), (
            "what it skips is not done"
        )
    else:
        assert (found.cost.flops, found.cost.nbytes, found.cost.source) == (99 * PRODUCT, 5, "kernel")


def test_a_table_that_the_kernel_writes_is_not_what_it_was() -> None:
    def body(run, i, j, t) -> None:
        t[0] = j
        pl.when(t[0] > 1)(run)

    traced = jax.make_jaxpr(lambda x: call(body, False)(jnp.asarray(TABLE), x))
    [found] = kernels.count_work(traced(jax.ShapeDtypeStruct((8, 8), jnp.float32))).calls
    assert found.cost.bound == "about"


def test_a_table_in_a_loop_over_layers_is_found_through_it_and_counts_as_often() -> None:
    def layers(x):
        def layer(c, _):
            return c + jax.jit(call(BODIES["table"], False))(jnp.asarray(TABLE), x), None

        return lax.scan(layer, jnp.zeros((1, 1), jnp.int32), length=6)[0]

    counted = kernels.count_work(jax.make_jaxpr(layers)(jax.ShapeDtypeStruct((8, 8), jnp.float32)))
    taken = sum(int(TABLE[j]) > i for i in range(4) for j in range(4))
    [found] = counted.calls
    assert (found.times, found.counted.flops, found.counted.bound) == (6, taken * PRODUCT, None)
    assert counted.flops == 6 * taken * PRODUCT


def test_copies_that_a_kernel_starts_count_where_they_touch_hbm() -> None:
    def kernel(x, out, buffer, semaphore) -> None:
        i = pl.program_id(0)

        @pl.when(i < 3)
        def _() -> None:
            copy = pltpu.make_async_copy(x.at[pl.ds(i * 8, 8)], buffer, semaphore)
            copy.start()
            copy.wait()

        out[...] = buffer[...]

    def called(kernel):
        scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
        return pl.pallas_call(
            kernel, grid=(4,), in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)), scratch_shapes=scratch,
            out_shape=jax.ShapeDtypeStruct((32, 128), jnp.float32),
        )  # fmt: skip

    x = jax.ShapeDtypeStruct((320, 128), jnp.float32)
    [call] = kernels.count_work(jax.make_jaxpr(called(kernel))(x)).calls
    assert (call.counted.copied, call.counted.read, call.counted.bound) == (3 * 8 * 128 * 4, (0,), None)
    assert call.counted.nbytes == (3 * 8 + 32) * 128 * 4
    [call] = kernels.count_work(jax.make_jaxpr(called(lambda *_: None))(x)).calls
    assert (call.counted.copied, call.counted.bound) == (320 * 128 * 4, "about"), "who knows how"


def masks(queries: int, keys: int) -> dict[str, tuple[splash_mask.Mask, np.ndarray]]:
    distance = np.arange(keys)[None] - np.arange(queries)[:, None]
    shape = (queries, keys)
    return {
        "all": (splash_mask.FullMask(shape), distance < keys),
        "causal": (splash_mask.CausalMask(shape), distance <= 0),
        "local": (splash_mask.LocalMask(shape, (200, 0), 0), (distance <= 0) & (distance >= -200)),
    }


def visited(seen: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Whether any query of a block sees any key of another."""
    queries, keys = (size // one for size, one in zip(seen.shape, (rows, columns), strict=True))
    return np.asarray(seen.reshape(queries, rows, keys, columns).any(axis=(1, 3)))


@pytest.mark.parametrize("name", ["all", "causal", "local"])
@settings(deadline=None, max_examples=3)
@given(
    rows=st.sampled_from([128, 256]),
    columns=st.sampled_from([128, 256, 512]),
    queries=st.sampled_from([512, 1024]),
)
def test_splash_attention_counts_the_blocks_of_its_mask(name, rows, columns, queries) -> None:
    heads, keys = 3, 1024
    mask, seen = masks(queries, keys)[name]
    sizes = splash.BlockSizes(block_q=rows, block_kv=columns, block_kv_compute=128)
    kernel = splash.make_splash_mha_single_device(
        splash_mask.MultiHeadMask([mask] * heads), block_sizes=sizes
    )
    q, k = (jax.ShapeDtypeStruct((2, heads, size, 128), jnp.bfloat16) for size in (queries, keys))
    [call] = kernels.count_work(jax.make_jaxpr(jax.vmap(lambda q, k, v: kernel(q, k, v)))(q, k, k)).calls
    blocks = visited(seen, rows, columns)
    assert call.counted.bound is None
    assert call.cost.flops == 2 * heads * blocks.sum() * 2 * rows * columns * (128 + 128)
    # Its table says which block of keys each step of the grid brings in; without one it is the step's own.
    table = kernel.fwd_mask_info.data_next
    steps = (
        np.tile(np.arange(blocks.shape[1]), len(blocks)) if table is None else np.asarray(table)[0].ravel()
    )
    order = [(head, block) for head in range(2 * heads) for block in steps]
    fresh = 1 + sum(a != b for a, b in itertools.pairwise(order))
    at = [dims[-2:] for _, dims in call.operands].index((queries, 128))
    assert call.counted.read is not None
    assert call.counted.read[at : at + 3] == (
        2 * heads * queries * 256,
        fresh * columns * 256,
        fresh * columns * 256,
    )


@pytest.mark.parametrize("name", ["all", "causal", "local"])
@settings(deadline=None, max_examples=3)
@given(rows=st.sampled_from([128, 256]), columns=st.sampled_from([128, 256, 512]), groups=st.integers(1, 2))
def test_our_kernel_counts_the_blocks_of_its_mask(name, rows, columns, groups) -> None:
    heads, length, blocks = 2, 1024, (rows, columns, 128)
    seen = visited(masks(length, length)[name][1], rows, columns)
    mask = {"all": Mask(), "causal": Mask(right=0), "local": Mask(left=200, right=0)}[name]
    q = jax.ShapeDtypeStruct((1, heads * groups, length, 128), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((1, heads, length, 128), jnp.bfloat16)
    traced = jax.make_jaxpr(lambda q, k, v: flash(q, k, v, mask, scale=0.1, blocks=blocks)[0])(q, k, k)
    [call] = kernels.count_work(traced).calls
    pairs = heads * groups * int(seen.sum()) * rows * columns
    # With the values' rows goes a tile of ones, whose product is the softmax's sum.
    assert (call.counted.flops, call.counted.bound) == (2 * pairs * (128 + 128 + 16), None)
    assert call.stated is not None
    assert call.cost.flops == min(call.stated[0], call.counted.flops)
    assert call.cost.flops >= 2 * pairs * (128 + 128)
    if name == "all":
        assert call.cost.flops == 2 * pairs * (128 + 128)
