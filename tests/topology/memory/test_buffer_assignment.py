"""The compiler's buffer assignment, as it writes it: recorded words, and programs that do not fit."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import SingleDeviceSharding

from tpuport.topology import compile_for, compiling, described
from tpuport.topology.memory import buffer_assignment, requested_hbm

GIB = 1 << 30
# Of jax 0.10.2's libtpu, numbers made small: b is written into the place of a, and c beside them.
BUFFERS = """BufferAssignment:
allocation 0: size 32, thread-local:
 value: <71 tuple.50{} @0> (size=32,offset=0): (pred[]{:T(512)}, s32[]{:T(128)})
allocation 1: size 4096, parameter 1, shape |bf16[2,1024]| at ShapeIndex {}:
 value: <5 x @0> (size=4096,offset=0): bf16[2,1024]{1,0:T(8,128)(2,1)}
allocation 2: size 1024, parameter 0, shape |bf16[512]| at ShapeIndex {}, maybe-live-out:
 value: <6 cache @0> (size=1024,offset=0): bf16[512]{0:T(256)}
 value: <9 dynamic-update-slice.1 @0> (size=1024,offset=0): bf16[512]{0:T(256)}
allocation 3: size 2048, output shape is |bf16[1024]|, maybe-live-out:
 value: <10 early @0> (size=2048,offset=0): bf16[2,512]{1,0}
 value: <12 result @0> (size=2048,offset=0): bf16[1024]{0}
allocation 4: size 512, constant:
 value: <13 constant.1 @0> (size=512,offset=0): s32[]{:T(128)}
allocation 5: size 9999, color 1, preallocated-temp:
 value: <14 fast @1> (size=9999,offset=0): bf16[4999]{0:S(1)}
allocation 6: size 10000, preallocated-temp:
 value: <15 a @0> (size=3000,offset=0): bf16[1500]{0}
 value: <16 b{1} @0> (size=3000,offset=0): bf16[1500]{0}
 value: <17 loop{0} (phi) @0> (size=2000,offset=8000): bf16[1000]{0}
 value: <18 c @0> (size=4000,offset=3000): bf16[2000]{0}
"""
RANGES = """HloLiveRange (max 9):
  InstructionSequence:
    0:x
  BufferLiveRange:
    x{}:0-9
    early{}:1-2
    result{}:8-9
    a{}:1-4
    b{1}:4-5
    loop{0}:2-5
    c{}:6-7
  Live ranges at 4 (peak):
    a{}: 3000 bytes (cumulative: 3000 bytes)
"""


def test_what_is_set_aside_is_summed_by_kind_in_hbm_only() -> None:
    assignment = buffer_assignment.parse(BUFFERS, RANGES, "HloModule m")
    assert assignment.arguments == 4096 + 1024, "the donated cache is an argument"
    assert assignment.outputs == 2048
    assert assignment.temporaries == 10000 + 512 + 32
    assert assignment.used == 4096 + 1024 + 2048 + 10000 + 512 + 32
    assert assignment.largest == 10000


def test_arrays_that_share_a_place_count_once() -> None:
    assignment = buffer_assignment.parse(BUFFERS, RANGES, "")
    # At 4: a or b, in one place, and the loop's; at 6: c alone.
    assert [(array.instruction, array.nbytes) for array in assignment.peak_arrays] == [
        ("a", 3000),
        ("result", 2048),
        ("loop", 2000),
    ]
    assert assignment.peak_arrays[2].path == (0,)
    assert assignment.gaps == 10000 - 3000 - 2000


def test_nothing_written_is_nothing_read(tmp_path: Path) -> None:
    assert buffer_assignment.read(str(tmp_path)) is None


class Scores(torch.nn.Module):
    """More for two arrays of scores than there is."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x @ x.T
        second = first.flip(0) @ x
        return first @ second, first @ x


ROWS = 3 << 15


def test_temporaries_alone_may_be_too_large() -> None:
    x = torch.empty(ROWS, 128, dtype=torch.bfloat16, device="meta")
    report = compile_for(Scores, {"x": x}, topology="v5e:1x1")
    memory, array = report.memory, 2 * ROWS * 128
    assert not report.fits
    assert report.program is None, "there is no code for addresses outside of the memory"
    assert memory.code is None
    assert memory.arguments == array
    assert memory.outputs == pytest.approx(2 * array, abs=1024)
    assert memory.temporaries >= 2 * ROWS * ROWS
    assert memory.used == memory.arguments + memory.outputs + memory.temporaries
    assert memory.used > memory.capacity
    assert report.failure.source.file == __file__
    assert "first" in report.failure.source.code
    assert report.failure.buffers[0].shape == f"bf16[{ROWS},{ROWS}]"
    assert report.failure.buffers[0].nbytes == 2 * ROWS * ROWS
    assert "by the compiler's buffer assignment" in report.failure.message
    stated = requested_hbm(report.failure.traceback)
    assert memory.used == pytest.approx(stated, abs=GIB // 100), "as the message has it, to 0.01 GiB"


def test_without_the_compiler_s_list_unknown_figures_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_assignment, "read", lambda directory: None)
    monkeypatch.setattr(compiling, "_try_compiler", lambda *arguments: None)
    x = torch.empty(ROWS, 128, dtype=torch.bfloat16, device="meta")
    report = compile_for(Scores, {"x": x}, topology="v5e:1x1")
    memory = report.memory
    assert memory.arguments == 2 * ROWS * 128
    assert (memory.outputs, memory.temporaries, memory.code) == (None, None, None)
    assert memory.used == requested_hbm(report.failure.traceback)
    assert "for outputs, temporaries and code" in report.failure.message
    assert "wrote no buffer assignment" in report.failure.message
    assert report.failure.buffers == ()
    assert report.to_dict()["memory"]["temporaries"] is None


@pytest.mark.slow
def test_room_between_temporaries_is_counted_once() -> None:
    """The compiler's figure has it twice; its buffer assignment says what is set aside."""

    def step(x):
        a = jnp.sin(x) @ x.T
        b = jax.lax.optimization_barrier(a.sum(0))
        return (jnp.cos(a) * b) @ x

    place = SingleDeviceSharding(described("v5e").devices[0])
    stage = jax.jit(step).lower(jax.ShapeDtypeStruct((8192, 512), jnp.bfloat16, sharding=place))
    with tempfile.TemporaryDirectory() as directory:
        program = stage.compile(compiler_options=buffer_assignment.dump_options(directory))
        assignment = buffer_assignment.read(directory)
    arguments, outputs, temporaries = compiling.read_memory_analysis(program.memory_analysis())
    assert (arguments, outputs) == (assignment.arguments, assignment.outputs)
    assert temporaries == pytest.approx(assignment.temporaries, rel=0.001, abs=1 << 16)


def test_the_message_after_code_was_made_says_by_how_much() -> None:
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: XLA:TPU compile permanent error. Ran out of memory in memory "
        "space hbm. Used 15.75G of 15.75G hbm. Exceeded hbm capacity by 1.44M."
    )
    assert requested_hbm(message) == int(15.75 * GIB) + int(1.44 * (1 << 20))
