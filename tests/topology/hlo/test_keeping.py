"""The largest temporaries of compiled programs."""

import jax.numpy as jnp
from jax import lax

from tpuport.topology import hlo

N = 8192  # bf16[2 * N, N] is 256 MB: it stays in VMEM of no TPU


def test_what_is_kept_between_two_products_is_found_at_its_line(compile_program, array) -> None:
    def two(x, first, second):
        between = jnp.tanh(x @ first)
        return lax.optimization_barrier(between) + second

    program, _ = compile_program(two, array(2 * N, 128), array(128, N), array(N))
    largest = hlo.list_buffers(program, 3)[0]
    assert (largest.shape, largest.nbytes) == (f"bf16[{2 * N},{N}]", 2 * N * N * 2)
    assert (largest.operation, largest.count) == ("fusion", 1)
    assert largest.source is not None
    assert largest.source.file == __file__
    assert largest.source.code == "between = jnp.tanh(x @ first)"


def test_arguments_results_and_a_donated_cache_are_none(compile_program, array) -> None:
    def step(cache, new, place):
        cache = lax.dynamic_update_slice(cache, new, (0, place, 0))
        return cache, cache * 2

    program, _ = compile_program(
        step, array(8, 64 * 1024, 128), array(8, 1, 128), array(dtype=jnp.int32), donate_argnums=0
    )
    assert all(one.nbytes < 1 << 20 for one in hlo.list_buffers(program, 5))


def test_what_a_loop_makes_of_zeros_is_its_result(compile_program, array) -> None:
    def layers(weights, x):
        return lax.scan(lambda x, weight: (jnp.tanh(x @ weight), x), x, weights)

    program, _ = compile_program(layers, array(64, 1024, 1024), array(256, 1024))
    assert all(one.shape != "bf16[64,256,1024]" for one in hlo.list_buffers(program, 5))


def test_how_many_are_told(compile_program, array) -> None:
    program, _ = compile_program(lambda x: lax.optimization_barrier(x + 1) * 2, array(8 * N, N))
    found = hlo.list_buffers(program, 2)
    assert len(found) <= 2
    assert [one.nbytes for one in found] == sorted((one.nbytes for one in found), reverse=True)
    assert hlo.list_buffers(program, 0) == ()
