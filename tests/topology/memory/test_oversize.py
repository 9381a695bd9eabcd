"""Programs that do not fit: the real compiler's words, its arrays by line, and arithmetic."""

import inspect
import linecache

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import SingleDeviceSharding

from tpuport.topology import described
from tpuport.topology.compile_report import Buffer, Memory, Source
from tpuport.topology.memory import (
    ALLOW_OVERSIZE,
    BufferAssignment,
    buffer_assignment,
    explain_oversize,
    group_by_line,
    requested_hbm,
)

GIB = 1 << 30
F32, I32, BF16 = jnp.float32, jnp.int32, jnp.bfloat16
ROWS, WIDTH = 1 << 20, 1 << 12


def lowered(function, *shapes: tuple[tuple[int, ...], object], **options):
    place = SingleDeviceSharding(described("v5e").devices[0])
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape, dtype in shapes]
    return jax.jit(function, **options).lower(*arguments)


def compile_with_assignment(stage, directory, **options) -> tuple[object, BufferAssignment]:
    """The program, and the compiler's buffer assignment for it."""
    options |= buffer_assignment.dump_options(str(directory))
    program = stage.compile(compiler_options=options)
    assignment = buffer_assignment.read(str(directory))
    assert assignment is not None
    return program, assignment


def refusal(stage) -> str:
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as raised:
        stage.compile()
    return str(raised.value)


def layers(x, w):
    first = x @ w
    second = jnp.sin(first) @ w
    return second, second.max()


@pytest.fixture(scope="module")
def stage():
    return lowered(layers, ((ROWS, WIDTH), BF16), ((WIDTH, WIDTH), BF16))


@pytest.fixture(scope="module")
def message(stage) -> str:
    return refusal(stage)


@pytest.fixture(scope="module")
def fitted(stage, tmp_path_factory):
    """The program although it does not fit, and its buffer assignment."""
    return compile_with_assignment(stage, tmp_path_factory.mktemp("dump"), **ALLOW_OVERSIZE)


def line_of(text: str) -> int:
    lines, start = inspect.getsourcelines(layers)
    return start + next(place for place, line in enumerate(lines) if text in line)


@pytest.mark.slow  # the other programs of this file
def test_the_compiler_says_how_much_it_needs(message, fitted) -> None:
    wanted = requested_hbm(message)
    memory = fitted[0].memory_analysis()
    exact = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    assert wanted == pytest.approx(exact, rel=0.01)
    failure = explain_oversize(message)
    assert failure.kind == "memory"
    assert failure.traceback == message
    assert "the 15.8 GiB there are" in failure.message
    assert "needs 24 GiB of HBM on each device, 8.3 GiB more than" in failure.message, (
        "8 each for x and two results"
    )
    assert failure.remedy
    assert failure.buffers == ()


@pytest.mark.slow  # what takes the memory in test_compiling.py, and the loop below
def test_the_arrays_of_a_program_that_does_not_fit_by_line(message, fitted) -> None:
    failure = explain_oversize(message, assignment=fitted[1])
    array = ROWS * WIDTH * 2
    lines = group_by_line(failure.buffers)
    [first, second] = [line for line in lines if line.nbytes >= array]
    assert {line.source.line for line in (first, second) if line.source} == {
        line_of("first = x @ w"), line_of("second = "),
    }  # fmt: skip
    assert (first.nbytes, second.nbytes) == pytest.approx((array, array), rel=1e-6)
    for line in (first, second):
        assert line.source
        assert line.source.file == __file__
        assert line.source.code == linecache.getline(__file__, line.source.line).strip()
    assert failure.source == first.source
    assert f"test_oversize.py:{line_of('first = x @ w')} (8 GiB)" in failure.message
    assert failure.buffers == tuple(buffer for line in lines for buffer in line.buffers)
    total = sum(buffer.nbytes * buffer.count for buffer in failure.buffers)
    memory = fitted[0].memory_analysis()
    assert total == pytest.approx(memory.temp_size_in_bytes + memory.output_size_in_bytes, rel=0.02)


def test_the_option_changes_no_program_that_fits() -> None:
    small = lowered(layers, ((256, 128), jnp.bfloat16), ((128, 128), jnp.bfloat16))
    assert small.compile().as_text() == small.compile(compiler_options=ALLOW_OVERSIZE).as_text()


def loop(x, ws):
    def body(x, w):
        return jnp.tanh(x @ w) @ w.T, x[0, 0]

    return jax.lax.scan(body, x, ws)


def test_what_a_loop_carries_comes_from_a_line_of_its_body(tmp_path) -> None:
    stage = lowered(loop, ((1 << 15, 256), F32), ((4, 256, 256), F32))
    program, assignment = compile_with_assignment(stage, tmp_path)
    memory = program.memory_analysis()
    exact = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    slack = 1 << 20  # what kernels and loops need of their own
    assert sum(array.nbytes for array in assignment.peak_arrays) == pytest.approx(exact, rel=0.25, abs=slack)
    failure = explain_oversize("RESOURCE_EXHAUSTED", assignment=assignment)
    assert failure.source
    assert failure.source.code == "return jnp.tanh(x @ w) @ w.T, x[0, 0]"


def test_arguments_alone_may_be_too_large() -> None:
    size = 1 << 33
    message = refusal(lowered(lambda x, y: (x + y).sum(), ((size,), BF16), ((size,), BF16)))
    assert requested_hbm(message) == pytest.approx(2 * 2 * size, rel=0.01)
    memory = Memory(int(15.75 * GIB), 30 * GIB, GIB, 0, 0, GIB, 0, 32 * GIB)
    failure = explain_oversize(message, memory=memory)
    assert "needs 32 GiB of HBM on each device, 16.2 GiB more than the 15.8 GiB there are" in failure.message
    assert "30 GiB for weights" in failure.message
    assert "fewer weights" in failure.remedy
    cached = explain_oversize(message, memory=Memory(int(15.75 * GIB), GIB, 30 * GIB, 0, 0, GIB, 0, 32 * GIB))
    assert "--max-cache-len" in cached.remedy


def test_weights_that_every_device_holds_are_named() -> None:
    """Rules divide them; more devices alone do not."""
    mesh = jax.sharding.Mesh(described("v5e").devices, "tp")
    whole, rows = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("tp", None))

    def remedy(place) -> str:
        weights = {
            "a.weight": jax.ShapeDtypeStruct((4096, 1024), BF16, sharding=place),
            "b.bias": jax.ShapeDtypeStruct((4096,), BF16, sharding=whole),
        }
        memory = Memory(int(15.75 * GIB), 30 * GIB, 0, 0, 0, GIB, 0, 32 * GIB)
        return explain_oversize("", memory, weights=weights).remedy

    assert "beginning with the largest, a.weight" in remedy(whole)
    assert "--rules FILE" in remedy(whole)
    assert "spread it over more devices (--tp" in remedy(rows)


def test_a_kernel_whose_blocks_want_too_much_vmem() -> None:
    rows, columns = 1 << 14, 1 << 9
    block = pl.BlockSpec((1, rows, columns), lambda i: (i, 0, 0))
    shape = jax.ShapeDtypeStruct((4, rows, columns), F32)

    def twice(x, y, out) -> None:
        out[0, :8, :128] = x[0, :8, :128] * y[0, :8, :128]

    def kernel(x):
        return pl.pallas_call(twice, out_shape=shape, grid=(4,), in_specs=[block, block], out_specs=block)(
            x, x
        )

    message = refusal(lowered(kernel, ((4, rows, columns), F32)))
    failure = explain_oversize(message)
    assert requested_hbm(message) is None, "of HBM nothing is said"
    assert (
        "a kernel (jit(kernel)/pallas_call) needs 192 MiB of VMEM, and there are 128 MiB" in failure.message
    )
    assert "blocks" in failure.remedy
    twofold, window = 2 * rows * columns * 4, f"f32[1,{rows},{columns}]"
    assert set(failure.buffers) == {
        Buffer(window, twofold, "input window", 2), Buffer(window, twofold, "output window", 1),
    }  # fmt: skip


def test_a_kernel_with_one_array_that_is_larger_than_vmem() -> None:
    shape, scratch_shape = jax.ShapeDtypeStruct((8, 128), F32), (1 << 16, 1 << 10)

    def twice(x, out, scratch) -> None:
        scratch[:8, :128] = x[...] * 2
        out[...] = scratch[:8, :128]

    def kernel(x):
        return pl.pallas_call(twice, out_shape=shape, scratch_shapes=[pltpu.VMEM(scratch_shape, F32)])(x)

    failure = explain_oversize(refusal(lowered(kernel, ((8, 128), F32))))
    assert "needs 256 MiB of VMEM, and there are 128 MiB" in failure.message
    assert failure.buffers == (Buffer("f32[65536,1024]", 1 << 28, "scratch operand", 1),)


# What compilers before this one say, in the form that XLA's documentation shows.
LISTED = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.25G of \
15.75G hbm. Exceeded hbm capacity by 5.50G.

Total hbm usage >= 21.75G:
    reserved        512.00M
    program          21.25G

  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="jit(step)/dot" source_file="/srv/me/model.py" source_line=12
     Shape: f32[8,128,1024,1024]{3,2,1,0:T(8,128)}
     Unpadded size: 4.00G
     XLA label: %fusion.7 = fusion(%p.1), kind=kOutput, calls=%fused.7
     Allocation type: HLO temp
     ==========================

  2. Size: 3.00G
     Shape: bf16[3,1024,1024,512]{3,2,1,0}
     Unpadded size: 3.00G
     XLA label: copy.3 = copy(p.2)
     Allocation type: HLO temp
     ==========================

  3. Size: 4.00G
     Operator: op_name="jit(step)/dot" source_file="/srv/me/model.py" source_line=12
     Shape: f32[8,128,1024,1024]{3,2,1,0:T(8,128)}
     Unpadded size: 4.00G
     XLA label: %fusion.8 = fusion(%p.1), kind=kOutput, calls=%fused.8
     Allocation type: HLO temp
     ==========================
"""


def test_a_list_in_the_message_is_read() -> None:
    failure = explain_oversize(LISTED)
    assert requested_hbm(LISTED) == int(21.25 * GIB)
    place = Source("/srv/me/model.py", 12, "")
    assert failure.buffers == (
        Buffer("f32[8,128,1024,1024]", 4 * GIB, "fusion", 2, place),
        Buffer("bf16[3,1024,1024,512]", 3 * GIB, "copy", 1),
    )
    assert [line.nbytes for line in group_by_line(failure.buffers)] == [8 * GIB, 3 * GIB]
    assert "21.2 GiB of HBM on each device, 5.5 GiB more" in failure.message
    assert "model.py:12 (8 GiB)" in failure.message


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (("RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding available "
         "bytes: 95.74G"), int(34.82 * GIB) + int(174.10 * GIB)),
        ("it's unlikely to have enough device memory. Requires 20.50G, has 15.75G available.", int(20.5 * GIB)),
        (("RESOURCE_EXHAUSTED: Allocation (size=4194304) would exceed memory (size=1048576) :: #a [space=smem, size = "
         "0x400000] :: smem.1"), None),
        ("RESOURCE_EXHAUSTED: something else", None),
        ("", None),
    ],
)  # fmt: skip
def test_other_forms_and_none(message: str, wanted: int | None) -> None:
    assert requested_hbm(message) == wanted
    failure = explain_oversize(message)
    assert failure.kind == "memory"
    assert failure.message
    assert failure.remedy
