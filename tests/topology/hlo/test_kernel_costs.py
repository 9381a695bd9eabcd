"""Kernels of a program's text, and what was counted of the calls that were traced."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from tpuport.topology import hlo, kernels
from tpuport.topology.kernels import KernelCall, KernelCost

ESTIMATE = ',"cost_estimate":{"flops":"1000","transcendentals":"5","bytes_accessed":"800"}'
TEXT = """\
HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[], f32[8,128]) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %given = f32[8,128]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %looped.4 = f32[8,128]{1,0:T(8,128)} custom-call(%given), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/while/body/attend/pallas_call"}, backend_config={"custom_call_config":{"body":"x"}}
  ROOT %made = (s32[], f32[8,128]) tuple(%n, %looped.4)
}

%condition (q: (s32[], f32[8,128])) -> pred[] {
  %q = (s32[], f32[8,128]) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (x: f32[8,128], y: bf16[3,100]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %y = bf16[3,100]{1,0:T(8,128)(2,1)} parameter(1)
  %near = f32[8,128]{1,0:T(8,128)S(1)} copy(%x)
  %attend.1 = f32[8,128]{1,0:T(8,128)} custom-call(%near), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/attend/pallas_call"}, backend_config={"custom_call_config":{"body":"x"}}
  %other.2 = (f32[8,128]{1,0:T(8,128)}, bf16[3,100]{1,0:T(8,128)(2,1)}) custom-call(%attend.1, %y), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/other/pallas_call"}, backend_config={"custom_call_config":{"body":"x"ESTIMATE}}
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,128]) tuple(%zero, %x)
  %loop = (s32[], f32[8,128]) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %out = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
""".replace("ESTIMATE", ESTIMATE)  # noqa: E501
SMALL, ODD = ("float32", (8, 128)), ("bfloat16", (3, 100))
ARRAY, TILES = 8.0 * 128 * 4, 8.0 * 128 * 2


def attend(
    flops: float, times: float, read: float = ARRAY, bound: str | None = None, name: str = "attend"
) -> KernelCall:
    cost = KernelCost(flops, read + ARRAY, "counted", bound, (read,), (ARRAY,))
    return KernelCall(name, (SMALL,), (SMALL,), times, None, cost)


def other(stated: tuple[float, float] | None, bound: str | None = None) -> KernelCall:
    cost = KernelCost(600.0, 6000.0, "counted", bound, (ARRAY, 600.0), (ARRAY, 600.0), 50.0)
    return KernelCall("other", (SMALL, ODD), (SMALL, ODD), 1.0, stated, cost)


def found(*calls: KernelCall) -> tuple[dict[str, tuple], hlo.Program]:
    program = hlo.parse(TEXT)
    hlo.apply_kernel_costs(program, calls)
    made = hlo.list_kernels(program)
    return {one.name: (one.count, one.flops, one.hbm_bytes, one.source, one.bound) for one in made}, program


def test_what_nothing_was_counted_of_has_what_it_says() -> None:
    kinds, program = found()
    assert kinds["other"] == (1, 1000, 800, "kernel", None)
    assert kinds["attend"] == (1, 0, 0, "kernel", None)
    assert hlo.count_product_flops(program) == 1000
    # An estimate that the compiler has not seen, or other sizes, are another kernel's.
    assert found(other((7.0, 7.0)))[0]["other"][3] == "kernel"
    assert found(attend(9.0, 1.0)._replace(results=(ODD,)))[0]["attend"][3] == "kernel"
    assert found(attend(9.0, 1.0, name="another"))[0]["attend"][3] == "kernel"


def test_arrays_count_where_they_lie_and_as_tiles_pad_them() -> None:
    kinds, program = found(attend(64.0, 1.0), other((1000.0, 800.0)))
    assert kinds["attend"] == (1, 64, ARRAY, "counted", None), "what it reads is in VMEM"
    # All of an array of [3, 100] is a tile of [8, 128].
    assert kinds["other"] == (1, 600, pytest.approx(2 * ARRAY + 2 * TILES + 50), "counted", None)
    assert kinds["looped"] == (3, 3 * 64, 3 * 2 * ARRAY, "counted", None)
    assert hlo.count_product_flops(program) == 64 + 600 + 3 * 64
    # The compiler has counted the kernel's own 1000, once.
    assert hlo.count_flops(program, 1000.0) == 64 + 600 + 3 * 64
    assert hlo.count_hbm_bytes(program) == pytest.approx(sum(value[2] for value in kinds.values()) + ARRAY), (
        "and the copy"
    )


def test_of_calls_that_look_alike_each_has_the_mean() -> None:
    """Together they cost what all calls do: here one of 40 and three of 80."""
    kinds, program = found(attend(40.0, 1.0, 100.0), attend(80.0, 3.0, 300.0, "at most"))
    assert kinds["attend"][1:] == (70, ARRAY, "counted", "at most")
    assert kinds["looped"][1:] == (210, 3 * (250 + ARRAY), "counted", "at most")
    assert hlo.count_product_flops(program) == 1000 + 40 + 3 * 80


def test_what_depends_on_data_is_said_by_a_kernel_that_says_something() -> None:
    assert found(other((1000.0, 800.0), "at most"))[0]["other"] == (1, 1000, 800, "kernel", None)


def test_a_kernel_without_an_estimate_has_its_grids_products_and_blocks(compile_program, mesh, array) -> None:
    def product(x, weight, made) -> None:
        @pl.when(pl.program_id(1) <= pl.program_id(0))
        def _() -> None:
            made[...] = jnp.dot(x[...], weight[...], preferred_element_type=jnp.float32).astype(jnp.bfloat16)

    def called(x, weight):
        return pl.pallas_call(
            product, out_shape=jax.ShapeDtypeStruct((1024, 256), jnp.bfloat16), grid=(4, 4), name="product_it",
            in_specs=[
                pl.BlockSpec((256, 4096), lambda i, j: (i, 0)), pl.BlockSpec((4096, 256), lambda i, j: (0, 0))
            ],
            out_specs=pl.BlockSpec((256, 256), lambda i, j: (i, 0)),
        )(x, weight)  # fmt: skip

    split = jax.shard_map(called, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    arguments = array(1024, 4096), array(4096, 256)
    program, flops = compile_program(split, *arguments)
    assert flops == 0
    counted = kernels.count_work(jax.make_jaxpr(split)(*arguments))
    hlo.apply_kernel_costs(program, counted.calls)
    [kernel] = hlo.list_kernels(program)
    assert (kernel.name, kernel.count, kernel.source, kernel.bound) == ("product_it", 1, "counted", None)
    done = 10 * 2 * 256 * 4096 * 256
    assert (
        kernel.flops
        == hlo.count_flops(program, flops)
        == hlo.count_product_flops(program)
        == counted.flops
        == done
    )
    # Arguments are in HBM; the result may be given back in VMEM and copied from there.
    assert hlo.count_hbm_bytes(program) == pytest.approx(
        2 * (1024 * 4096 + 4096 * 256 + 1024 * 256), rel=0.01
    )
