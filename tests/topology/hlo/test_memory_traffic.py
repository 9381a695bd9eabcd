"""HBM traffic of compiled programs, against what has to be read and written."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from tpuport.topology import hlo
from tpuport.topology.hlo.memory_traffic import instruction_bytes

N = 512
SLACK = 64 * 1024  # indices and numbers alone, which take a tile each


def test_a_matrix_product_reads_two_and_writes_one(compile_program, array) -> None:
    program, _ = compile_program(lambda a, b: a @ b, array(2 * N, N), array(N, 4 * N))
    assert hlo.count_hbm_bytes(program) == 2 * (2 * N * N + 4 * N * N + 8 * N * N)


def test_an_elementwise_function_reads_and_writes_once(compile_program, array) -> None:
    program, _ = compile_program(
        lambda a, b: jnp.tanh(a) * 2 + b, array(N, N), array(N, N, dtype=jnp.float32)
    )
    assert hlo.count_hbm_bytes(program) == N * N * (2 + 4 + 4)


def test_what_stays_in_vmem_is_not_counted(compile_program, array) -> None:
    program, _ = compile_program(lambda a, b: jnp.tanh(a @ b) @ b, array(N, N), array(N, N))
    assert hlo.count_hbm_bytes(program) == 3 * 2 * N * N


@pytest.mark.parametrize("layers", [3, 12])
def test_a_scan_reads_all_of_its_weights(layers, compile_program, array) -> None:
    def blocks(weights, x):
        return lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]

    program, _ = compile_program(blocks, array(layers, N, N), array(8, N))
    weights = layers * N * N * 2
    assert weights <= hlo.count_hbm_bytes(program) < 1.1 * weights + SLACK


def test_rows_that_are_looked_up_in_a_table_larger_than_vmem_are_read_alone(compile_program, array) -> None:
    program, _ = compile_program(lambda table, i: table[i], array(1024 * N, N), array(16, dtype=jnp.int32))
    assert 2 * 16 * N * 2 <= hlo.count_hbm_bytes(program) < 2 * 16 * N * 2 + SLACK


def updated(cache, new, place):
    return lax.dynamic_update_slice(cache, jnp.tanh(new), (0, place, 0))


def test_a_cache_is_updated_in_place_if_it_is_donated(compile_program, array) -> None:
    arguments = array(8, 16 * N, 128), array(8, 1, 128), array(dtype=jnp.int32)
    size = 8 * 16 * N * 128 * 2
    program, _ = compile_program(updated, *arguments, donate_argnums=0)
    assert hlo.count_hbm_bytes(program) < SLACK
    program, _ = compile_program(updated, *arguments)
    assert 2 * size <= hlo.count_hbm_bytes(program) < 2 * size + SLACK


@pytest.mark.slow  # the donated cache and the scans above
@pytest.mark.usefixtures("usual_effort")
def test_a_donated_cache_in_a_loop_is_updated_in_place(compile_program, array) -> None:
    def layers(caches, new, place):
        def layer(new, cache):
            cache = updated(cache, new, place)
            return new + cache.mean(axis=1, keepdims=True), cache

        return lax.scan(layer, new, caches)

    program, _ = compile_program(
        layers, array(6, 8, 4 * N, 128), array(8, 1, 128), array(dtype=jnp.int32), donate_argnums=0
    )
    size = 6 * 8 * 4 * N * 128 * 2
    assert size <= hlo.count_hbm_bytes(program) < 3.3 * size, (
        "read for the mean; at most sliced out and put back too"
    )


def test_the_costliest_branch_counts(compile_program, array) -> None:
    def either(chosen, x, weight):
        return lax.cond(chosen, lambda: x @ weight, lambda: x + 1)

    program, _ = compile_program(either, array(dtype=jnp.bool_), array(N, N), array(N, N))
    assert 3 * 2 * N * N <= hlo.count_hbm_bytes(program) < 3 * 2 * N * N + SLACK


def test_a_kernel_has_its_own_estimate(compile_program, mesh, array) -> None:
    def double(given, made):
        made[...] = given[...] * 2

    def kernel(estimate):
        def called(x):
            block = pl.BlockSpec((256, N), lambda i: (i, 0))
            return pl.pallas_call(
                double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(N // 256,), in_specs=[block],
                out_specs=block, cost_estimate=estimate, name="double_it",
            )(x)  # fmt: skip

        return jax.shard_map(called, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)

    estimate = pl.CostEstimate(flops=12345, transcendentals=0, bytes_accessed=67890)
    program, flops = compile_program(kernel(estimate), array(N, N))
    assert hlo.count_hbm_bytes(program) == 67890
    [found] = hlo.list_kernels(program)
    assert (found.name, found.count, found.flops, found.hbm_bytes) == ("double_it", 1, 12345, 67890)
    assert hlo.count_flops(program, flops) == 12345
    program, _ = compile_program(kernel(None), array(N, N))
    assert hlo.count_hbm_bytes(program) == 2 * N * N * 2, "what it takes and gives"
    [found] = hlo.list_kernels(program)
    assert (found.count, found.flops, found.hbm_bytes) == (1, 0, 0)

    def repeated(x):
        return lax.scan(lambda x, _: (kernel(estimate)(x), None), x, length=5)[0]

    program, flops = compile_program(repeated, array(N, N))
    [found] = hlo.list_kernels(program)
    assert (found.count, found.flops, found.hbm_bytes) == (5, 5 * 12345, 5 * 67890)
    assert hlo.count_flops(program, flops) == pytest.approx(5 * 12345, abs=50)
    assert hlo.count_hbm_bytes(program) >= 5 * 67890


FRAGMENT = """HloModule jit_f

%takes (t0: f32[64,1024], t1: s32[]) -> f32[1,1024] {
  %t0 = f32[64,1024]{1,0:T(8,128)} parameter(0)
  %t1 = s32[]{:T(128)S(6)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %same = f32[64,1024]{1,0:T(8,128)} bitcast(%t0)
  %row = f32[1,1024]{1,0:T(1,128)} dynamic-slice(%same, %t1, %zero), dynamic_slice_sizes={1,1024}
  ROOT %negated = f32[1,1024]{1,0:T(1,128)} negate(%row)
}

%puts (u0: f32[64,1024], u1: f32[1,1024], u2: s32[]) -> (f32[64,1024], f32[8]) {
  %u0 = f32[64,1024]{1,0:T(8,128)} parameter(0)
  %u1 = f32[1,1024]{1,0:T(1,128)} parameter(1)
  %u2 = s32[]{:T(128)S(6)} parameter(2)
  %none = s32[]{:T(128)} constant(0)
  %put = f32[64,1024]{1,0:T(8,128)} dynamic-update-slice(%u0, %u1, %u2, %none)
  %ones = f32[8]{0:T(8)} broadcast(%none), dimensions={}
  ROOT %both = (f32[64,1024]{1,0:T(8,128)}, f32[8]{0:T(8)}) tuple(%put, %ones)
}

ENTRY %main (p: f32[64,1024], i: s32[], h: f32[64,1024]) -> f32[64,1024] {
  %p = f32[64,1024]{1,0:T(8,128)} parameter(0)
  %i = s32[]{:T(128)S(6)} parameter(1)
  %h = f32[64,1024]{1,0:T(8,128)S(5)} parameter(2)
  %next = (f32[64,1024]{1,0:T(8,128)S(1)}, f32[64,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%p), cross_program_prefetch_index=0
  %here = f32[64,1024]{1,0:T(8,128)S(1)} copy-done(%next)
  %taken = f32[1,1024]{1,0:T(1,128)} fusion(%p, %i), kind=kLoop, calls=%takes
  %given = (f32[64,1024]{1,0:T(8,128)}, f32[8]{0:T(8)}) fusion(%p, %taken, %i), kind=kLoop, calls=%puts
  %back = f32[64,1024]{1,0:T(8,128)} get-tuple-element(%given), index=0
  %sum = f32[64,1024]{1,0:T(8,128)S(1)} add(%here, %here)
  %out = (f32[64,1024]{1,0:T(8,128)S(5)}, f32[64,1024]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) copy-start(%sum)
  %away = f32[64,1024]{1,0:T(8,128)S(5)} copy-done(%out)
  %part = ((f32[64,1024]{1,0:T(8,128)}), f32[16,1024]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:16], [0:1024]}
  %parted = f32[16,1024]{1,0:T(8,128)S(1)} slice-done(%part)
  %used = f32[32,1024]{1,0:T(8,128)S(1)} custom-call(%parted, %parted), custom_call_target="ConcatBitcast"
  %again = (f32[64,1024]{1,0:T(8,128)S(1)}, f32[64,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%p)
  %later = f32[64,1024]{1,0:T(8,128)S(1)} copy-done(%again)
  ROOT %end = f32[64,1024]{1,0:T(8,128)} bitcast(%back)
}
"""  # noqa: E501


def test_each_instruction_of_a_fragment() -> None:
    program = hlo.parse(FRAGMENT)
    found = {
        instruction.name: instruction_bytes(program, instruction) for instruction in program.instructions
    }
    whole, row = 64 * 1024 * 4, 1024 * 4
    assert {name: nbytes for name, nbytes in found.items() if nbytes} == {
        "next": whole,  # into VMEM
        "taken": 2 * row,
        "given": 2 * row + 8 * 4,  # the row read and put, and the other result
        "part": 16 * row,
    }, "not what goes from VMEM to the host, nor what is fetched for the step after"
