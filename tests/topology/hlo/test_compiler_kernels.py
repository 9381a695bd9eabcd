"""Kernels that the compiler makes by itself, in programs that it compiled: against products counted by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tpuport.topology import hlo, kernels

ROWS, INNER, WIDTH, GROUPS = 1024, 512, 1024, 8
WHOLE = 2 * ROWS * INNER * WIDTH


def grouped(x, weights, sizes):
    return lax.ragged_dot(x, weights, sizes)


def compiled_with_counts(compile_program, function, *arguments):
    """(the program, what was traced)."""
    program, compiler_flops = compile_program(function, *arguments)
    counted = kernels.count_work(jax.make_jaxpr(function)(*arguments))
    hlo.apply_kernel_costs(program, counted.calls)
    return program, counted, compiler_flops


def test_rows_by_their_groups_matrix(compile_program, array) -> None:
    arguments = array(ROWS, INNER), array(GROUPS, INNER, WIDTH), array(GROUPS, dtype=jnp.int32)
    program, counted, compiler_flops = compiled_with_counts(compile_program, grouped, *arguments)
    if program.skipped_shares:
        assert list(program.skipped_shares.values()) == [1 - 1 / GROUPS]
    else:
        [kernel] = [one for one in hlo.list_kernels(program) if one.flops]
        assert kernel.name == "ragged-dot-none"
        assert (kernel.flops, kernel.source, kernel.bound) == (WHOLE, "counted", "about")
    assert counted.flops == hlo.count_product_flops(program) == WHOLE
    # Around a product that skips groups is elementwise work, which chooses rows.
    choosing = 2 * GROUPS * ROWS * WIDTH if program.skipped_shares else 0
    assert WHOLE <= hlo.count_flops(program, compiler_flops) <= WHOLE + choosing
    assert hlo.count_expanded_flops(program, counted.calls) == 0
    moved = 2 * (ROWS * INNER + GROUPS * INNER * WIDTH + ROWS * WIDTH)
    assert hlo.count_hbm_bytes(program) == pytest.approx(moved, rel=0.01)


@pytest.mark.parametrize(
    ("experts", "met"), [pytest.param(8, 8, marks=pytest.mark.slow), (64, 64 * (1 - (1 - 1 / 64) ** 512))]
)
def test_a_device_has_the_rows_of_its_own_groups(experts, met, compile_program, array, mesh) -> None:
    """Two devices of tp share out the groups, and two of sp the rows; some groups may have no row at all."""
    split = jax.shard_map(
        lambda x, weights, sizes: lax.psum(grouped(x, weights, sizes), "tp"), mesh=mesh,
        in_specs=(P("sp"), P("tp"), P("tp")), out_specs=P("sp"), check_vma=False,
    )  # fmt: skip
    arguments = array(ROWS, INNER), array(experts, INNER, WIDTH), array(experts, dtype=jnp.int32)
    program, counted, _ = compiled_with_counts(compile_program, split, *arguments)
    assert hlo.count_product_flops(program) == WHOLE / 4 == counted.flops / 4
    if program.skipped_shares:
        return
    [kernel] = [one for one in hlo.list_kernels(program) if one.flops]
    assert (kernel.flops, kernel.bound) == (WHOLE / 4, "about")
    [cost] = [value for value in program.kernel_costs.values() if value.flops]
    read = 2 * (ROWS / 4 * INNER + met / 2 * INNER * WIDTH), 2 * ROWS / 4 * WIDTH
    assert (sum(cost.read[-2:]), sum(cost.written)) == pytest.approx(read, rel=1e-9)


def test_few_rows_are_multiplied_by_all_groups(compile_program, array) -> None:
    arguments = array(4, INNER), array(GROUPS, INNER, WIDTH), array(GROUPS, dtype=jnp.int32)
    program, counted, _ = compiled_with_counts(compile_program, grouped, *arguments)
    needed = 2 * 4 * INNER * WIDTH
    excess = 0 if program.skipped_shares else (GROUPS - 1) * needed
    assert counted.flops == needed
    assert hlo.count_product_flops(program) == needed + excess
    assert hlo.count_expanded_flops(program, counted.calls) == excess


def test_products_of_one_shape_have_each_their_own_excess(compile_program, array) -> None:
    def twice(x, weights, y, others, sizes):
        return grouped(x, weights, sizes), grouped(y, others, sizes)

    arguments = (
        array(4, INNER), array(GROUPS, INNER, WIDTH), array(4, 2 * INNER), array(GROUPS, 2 * INNER, WIDTH),
        array(GROUPS, dtype=jnp.int32),
    )  # fmt: skip
    program, counted, _ = compiled_with_counts(compile_program, twice, *arguments)
    needed = 2 * 4 * 3 * INNER * WIDTH
    assert hlo.count_product_flops(program) - hlo.count_expanded_flops(program, counted.calls) == needed


# As libtpu 0.0.52 writes it, without layouts.
SKIPPING = """HloModule jit_f, is_scheduled=true

%fused (x: bf16[16,32], w: bf16[8,32,64]) -> f32[8,16,64] {
  %x = bf16[16,32]{1,0} parameter(0)
  %w = bf16[8,32,64]{2,1,0} parameter(1)
  %rows = bf16[8,16,32]{2,1,0} broadcast(%x), dimensions={1,2}
  ROOT %dot = f32[8,16,64]{2,1,0} dot(%rows, %w), lhs_contracting_dims={2}, rhs_contracting_dims={1}
}

ENTRY %main (y: bf16[16,32], v: bf16[8,32,64]) -> f32[8,16,64] {
  %y = bf16[16,32]{1,0} parameter(0)
  %v = bf16[8,32,64]{2,1,0} parameter(1)
  ROOT %fusion = f32[8,16,64]{2,1,0} fusion(%y, %v), kind=kOutput, calls=%fused, backend_config={"is_ragged_dot":true}
}
"""


def test_a_product_that_skips_other_groups_does_what_is_needed(array) -> None:
    arguments = array(16, 32), array(8, 32, 64), array(8, dtype=jnp.int32)
    program = hlo.parse(SKIPPING)
    calls = kernels.count_work(jax.make_jaxpr(grouped)(*arguments)).calls
    hlo.apply_kernel_costs(program, calls)
    needed = 2 * 16 * 32 * 64
    assert hlo.count_product_flops(program) == hlo.count_flops(program, 8 * needed) == needed
    assert hlo.count_expanded_flops(program, calls) == 0


def test_softmax_and_the_product_after_it(compile_program, array) -> None:
    """Written out, attention has two products, of which one is in the compiler's kernel with the softmax."""

    def attention(q, k, v, mask):
        scores = jnp.where(mask, jnp.einsum("bhqd,bhkd->bhqk", q, k), -jnp.inf)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)

    arguments = *[array(8, 8, 1024, 64)] * 3, array(1024, 1024, dtype=jnp.bool_)
    program, counted, _ = compiled_with_counts(compile_program, attention, *arguments)
    product = 2 * 8 * 8 * 1024**2 * 64
    [kernel] = hlo.list_kernels(program)
    assert kernel.name == "online-softmax"
    assert (kernel.count, kernel.flops, kernel.source, kernel.bound) == (1, product, "counted", None)
    assert hlo.count_product_flops(program) == counted.flops == 2 * product
    scores = 2 * 8 * 8 * 1024**2
    assert scores <= kernel.hbm_bytes <= scores + 3 * 2 * 8 * 8 * 1024 * 128, "and what else is not in VMEM"
