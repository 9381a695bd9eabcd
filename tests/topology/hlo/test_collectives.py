"""Collectives of compiled programs: kinds, axes, counts and bytes against what was asked for."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tpuport.topology import hlo

N = 512


def only(program, mesh):
    [found] = hlo.list_collectives(program, mesh)
    return found


@pytest.fixture
def mapped(mesh):
    def made(function, spec, out):
        return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)

    return made


@pytest.mark.parametrize("axes", [("tp",), ("sp",), ("sp", "tp")])
def test_an_all_reduce_over_axes(axes, mesh, array, compile_program) -> None:
    program, _ = compile_program(
        lambda a, b: a @ b, array(N, 2 * N, spec=P(None, axes)), array(2 * N, N, spec=P(axes))
    )
    found = only(program, mesh)
    assert (found.kind, found.axes, found.group) == ("all-reduce", axes, 2 ** len(axes))
    assert (found.count, found.nbytes) == (1, N * N * 2)
    assert found.source is not None
    assert found.source.file == __file__
    assert found.source.code.startswith("lambda a, b: a @ b")


@pytest.mark.parametrize("axis", ["tp", "sp"])
def test_an_all_gather(axis, mesh, array, compile_program) -> None:
    whole = NamedSharding(mesh, P())
    program, _ = compile_program(
        lambda a: lax.with_sharding_constraint(a, whole) * 2, array(4 * N, 4 * N, spec=P(axis))
    )
    found = only(program, mesh)
    assert (found.kind, found.axes, found.group) == ("all-gather", (axis,), 2)
    assert (found.count, found.nbytes) == (1, 16 * N * N * 2)


def test_collectives_of_one_axis_in_a_manual_program(mesh, array, mapped, compile_program) -> None:
    x = array(8 * N, N, spec=P("sp"))
    cases = {
        "reduce-scatter": (lambda a: lax.psum_scatter(a, "sp", tiled=True), P("sp"), 2 * N),
        "collective-permute": (lambda a: lax.ppermute(a, "sp", [(0, 1), (1, 0)]), P("sp"), 4 * N),
        "all-to-all": (lambda a: lax.all_to_all(a, "sp", 1, 0, tiled=True), P(None, "sp"), 4 * N),
    }
    for kind, (function, out, rows) in cases.items():
        found = only(compile_program(mapped(function, P("sp"), out), x)[0], mesh)
        assert (found.kind, found.axes, found.group, found.count) == (kind, ("sp",), 2, 1)
        assert found.nbytes == rows * N * 2, kind
        assert found.overlapped == (kind == "collective-permute")


def test_those_in_a_loop_count_as_often_as_it_runs(mesh, array, compile_program) -> None:
    whole = NamedSharding(mesh, P())

    def blocks(weights, x):
        def block(x, weight):
            return jnp.tanh(lax.with_sharding_constraint(x @ weight, whole)), None

        return lax.scan(block, x, weights)[0]

    program, _ = compile_program(
        blocks, array(7, N, N, spec=P(None, "tp")), array(2 * N, N, spec=P(None, "tp"))
    )
    found = hlo.list_collectives(program, mesh)
    assert {one.axes for one in found} == {("tp",)}
    assert {one.count for one in found} == {7}
    # An all-reduce leaves all of it; the compiler may leave each device its part, which is what it needs next.
    assert {(one.kind, one.nbytes) for one in found} <= {
        ("all-reduce", 7 * 2 * N * N * 2), ("reduce-scatter", 7 * N * N * 2),
    }  # fmt: skip


BIT_BY_BIT = """HloModule jit_f

%first (p0: bf16[1024,8192]) -> (bf16[1024,8192], bf16[4096,8192], u32[]) {
  %p0 = bf16[1024,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %gather.0 = bf16[4096,8192]{1,0:T(8,128)(2,1)} all-gather(%p0), channel_id=19, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %c0 = (bf16[1024,8192]{1,0:T(8,128)(2,1)}, bf16[4096,8192]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) custom-call(%gather.0), custom_call_target="AsyncCollectiveStart"
}

%middle (p1: bf16[1024,8192], p2: bf16[4096,8192], p3: f32[1024]) -> (f32[1024], bf16[1024,8192], bf16[4096,8192]) {
  %p1 = bf16[1024,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %p2 = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(1)
  %p3 = f32[1024]{0:T(1024)} parameter(2)
  %negate = f32[1024]{0:T(1024)} negate(%p3)
  %gather.1 = bf16[4096,8192]{1,0:T(8,128)(2,1)} all-gather(%p1), channel_id=19, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %t = (f32[1024]{0:T(1024)}, bf16[1024,8192]{1,0:T(8,128)(2,1)}, bf16[4096,8192]{1,0:T(8,128)(2,1)}) tuple(%negate, %p1, %gather.1)
}

%last (p4: bf16[1024,8192], p5: bf16[4096,8192]) -> bf16[4096,8192] {
  %p4 = bf16[1024,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %p5 = bf16[4096,8192]{1,0:T(8,128)(2,1)} parameter(1)
  %gather.2 = bf16[4096,8192]{1,0:T(8,128)(2,1)} all-gather(%p4), channel_id=19, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %c1 = bf16[4096,8192]{1,0:T(8,128)(2,1)} custom-call(%p4, %p5, %gather.2), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (a: bf16[1024,8192], b: f32[1024]) -> (f32[1024], bf16[4096]) {
  %a = bf16[1024,8192]{1,0:T(8,128)(2,1)} parameter(0)
  %b = f32[1024]{0:T(1024)} parameter(1)
  %start = (bf16[1024,8192]{1,0:T(8,128)(2,1)}, bf16[4096,8192]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) fusion(%a), kind=kCustom, output_to_operand_aliasing={{0}: (0, {})}, calls=%first
  %g0 = bf16[1024,8192]{1,0:T(8,128)(2,1)} get-tuple-element(%start), index=0
  %g1 = bf16[4096,8192]{1,0:T(8,128)(2,1)} get-tuple-element(%start), index=1
  %step = (f32[1024]{0:T(1024)}, bf16[1024,8192]{1,0:T(8,128)(2,1)}, bf16[4096,8192]{1,0:T(8,128)(2,1)}) fusion(%g0, %g1, %b), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, calls=%middle
  %g2 = bf16[1024,8192]{1,0:T(8,128)(2,1)} get-tuple-element(%step), index=1
  %g3 = bf16[4096,8192]{1,0:T(8,128)(2,1)} get-tuple-element(%step), index=2
  %g4 = f32[1024]{0:T(1024)} get-tuple-element(%step), index=0
  %done = bf16[4096,8192]{1,0:T(8,128)(2,1)} fusion(%g2, %g3), kind=kCustom, output_to_operand_aliasing={{}: (1, {})}, calls=%last
  %read = bf16[4096]{0:T(1024)(128)(2,1)S(1)} some-sum(%done)
  ROOT %out = (f32[1024]{0:T(1024)}, bf16[4096]{0:T(1024)(128)(2,1)S(1)}) tuple(%g4, %read)
}
"""  # noqa: E501


def test_one_that_several_fusions_do_bit_by_bit_is_one(mesh) -> None:
    program = hlo.parse(BIT_BY_BIT)
    found = only(program, mesh)
    assert (found.kind, found.axes, found.group, found.count) == ("all-gather", ("sp", "tp"), 4, 1)
    assert (found.nbytes, found.overlapped) == (4096 * 8192 * 2, 1)
    part = 1024 * 8192 * 2
    assert hlo.count_hbm_bytes(program) == part + 4 * part + 2 * 4096 + 4 * part, "gathered, negated, summed"
    assert [(one.shape, one.operation) for one in hlo.list_buffers(program, 5)] == [
        ("bf16[4096,8192]", "fusion")
    ]


BESIDE = """HloModule jit_f

%wrapped (p0: f32[1024]) -> f32[512] {
  %p0 = f32[1024]{0:T(1024)} parameter(0)
  ROOT %rs = f32[512]{0:T(512)} reduce-scatter(%p0), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}, to_apply=%add
}

%big (b0: f32[1024]) -> f32[1024] {
  %b0 = f32[1024]{0:T(1024)} parameter(0)
  ROOT %ar = f32[1024]{0:T(1024)} all-reduce(%b0), channel_id=2, replica_groups={{0,2},{1,3}}, to_apply=%add
}

%small (b1: f32[1024]) -> f32[1024] {
  %b1 = f32[1024]{0:T(1024)} parameter(0)
  %part = f32[8]{0:T(128)S(1)} slice(%b1), slice={[0:8]}
  %ar.1 = f32[8]{0:T(128)S(1)} all-reduce(%part), channel_id=3, replica_groups={{0,2},{1,3}}, to_apply=%add
  ROOT %same = f32[1024]{0:T(1024)} copy(%b1)
}

ENTRY %main (p: f32[1024], q: s32[]) -> f32[1024] {
  %p = f32[1024]{0:T(1024)} parameter(0)
  %q = s32[]{:T(128)} parameter(1)
  %s = ((f32[1024]{0:T(1024)}), f32[512]{0:T(512)}, u32[]{:S(2)}) async-start(%p), calls=%wrapped
  %d = f32[512]{0:T(512)} async-done(%s)
  %ars = (f32[1024]{0:T(1024)}, f32[2]{0:T(128)}) all-reduce-start(%p, %d), channel_id=4, replica_groups={}, to_apply=%add
  ROOT %cond = f32[1024]{0:T(1024)} conditional(%q, %p, %p), branch_computations={%small, %big}
}
"""  # noqa: E501


def test_one_in_the_background_and_of_branches_the_one_that_sends_more(mesh) -> None:
    program = hlo.parse(BESIDE)
    found = {one.kind: [] for one in hlo.list_collectives(program, mesh)}
    for one in hlo.list_collectives(program, mesh):
        found[one.kind].append((one.axes, one.count, one.nbytes, one.overlapped))
    assert found == {
        "reduce-scatter": [(("tp",), 1, 2048, 1)],
        "all-reduce": [(("sp", "tp"), 1, 4096 + 8, 1), (("sp",), 1, 4096, 0)],
    }
