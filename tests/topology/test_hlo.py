"""Reading programs: a fragment as the TPU compiler writes it, and one that this CPU's compiler has just written."""

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.topology.hlo import Array, arrays, collectives, instructions, largest, square

FRAGMENT = """HloModule jit_call, is_scheduled=true

%fused_computation.1 (param_0.1: bf16[128,256]) -> f32[128,256] {
  %param_0.1 = bf16[128,256]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %convert.1 = f32[128,256]{1,0:T(8,128)} convert(%param_0.1)
}

ENTRY %main.9 (p.1: bf16[128,256]) -> (f32[128,256]) {
  %p.1 = bf16[128,256]{1,0:T(8,128)(2,1)} parameter(0), sharding={replicated}
  %fusion.7 = f32[128,256]{1,0:T(8,128)} fusion(%p.1), kind=kLoop, calls=%fused_computation.1
  %all-gather-start = (bf16[16,256]{1,0}, bf16[128,256]{1,0:T(8,128)(2,1)}) all-gather-start(%p.1), dimensions={0}
  %all-gather-done = bf16[128,256]{1,0:T(8,128)(2,1)} all-gather-done(%all-gather-start)
  %permute-start = (pred[8,16]{1,0}, pred[8,16]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p.1)
  %all-reduce.1 = (f32[4]{0}, f32[]) all-reduce(%a, %b), to_apply=%add
  ROOT %tuple = (f32[128,256]{1,0:T(8,128)}) tuple(%fusion.7)
}
"""


def test_each_line_is_an_operation_with_its_arrays() -> None:
    found = list(instructions(FRAGMENT))
    assert [one.operation for one in found] == [
        "parameter", "convert", "parameter", "fusion", "all-gather-start", "all-gather-done",
        "collective-permute-start", "all-reduce", "tuple",
    ]  # fmt: skip
    assert [one.is_fused for one in found] == [True, True] + [False] * 7
    assert found[4].arrays == (Array("bf16", (16, 256)), Array("bf16", (128, 256)))


def test_collectives_are_counted_once_with_what_they_leave() -> None:
    assert collectives(list(instructions(FRAGMENT))) == {
        "all-gather": [128 * 256 * 2], "collective-permute": [8 * 16], "all-reduce": [5 * 4],
    }  # fmt: skip


def test_what_is_inside_of_a_fusion_takes_no_memory() -> None:
    found = largest(list(instructions(FRAGMENT)), 2)
    assert found[0] == (Array("f32", (128, 256)), "fusion", 1)
    assert found[1] == (Array("bf16", (128, 256)), "all-gather-start", 1)


def test_square_arrays_are_found_inside_of_fusions_too() -> None:
    assert square(list(instructions(FRAGMENT)), 128) == [Array("bf16", (128, 256)), Array("f32", (128, 256))]
    assert square(list(instructions(FRAGMENT)), 129) == []


def test_bytes_of_narrow_types() -> None:
    assert [array.nbytes for array in arrays("s4[3], pred[5]{0} f8e4m3fn[2,2] c64[2]")] == [2, 5, 4, 16]
    assert str(Array("bf16", (2, 3))) == "bf16[2,3]"


def test_a_program_of_this_compiler() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("tp",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("tp"))
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=split)
    text = jax.jit(lambda x: jnp.tanh(x).sum(0)).lower(x).compile().as_text()
    assert collectives(list(instructions(text))) == {"all-reduce": [32 * 4]}
