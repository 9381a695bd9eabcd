"""Reading programs: a fragment as the TPU compiler writes it, and one that this CPU's compiler has just written."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuport.topology import hlo
from tpuport.topology.hlo import Array
from tpuport.topology.hlo import instructions as module

FRAGMENT = """HloModule jit_call, is_scheduled=true

FileNames
1 "a.py"

%fused_computation.1 (param_0.1: bf16[128,256]) -> f32[128,256] {
  %param_0.1 = bf16[128,256]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %convert.1 = f32[128,256]{1,0:T(8,128)} convert(%param_0.1)
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main.9 (p.1: bf16[128,256]) -> (f32[128,256]) {
  %p.1 = bf16[128,256]{1,0:T(8,128)(2,1)} parameter(0), sharding={replicated}
  %c = s32[2]{0:T(128)} constant({1, 2})
  %fusion.7 = f32[128,256]{1,0:T(8,128)} fusion(%p.1), kind=kLoop, calls=%fused_computation.1, metadata={op_name="jit(call)/body=%add" stack_frame_id=7}
  %all-gather-start = (bf16[16,256]{1,0}, bf16[128,256]{1,0:T(8,128)(2,1)}) all-gather-start(%p.1), dimensions={0}
  %all-gather-done = bf16[128,256]{1,0:T(8,128)(2,1)} all-gather-done(%all-gather-start)
  %permute-start = (pred[8,16]{1,0}, pred[8,16]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p.1)
  %all-reduce.1 = (f32[4]{0}, f32[]) all-reduce(%a, /*index=1*/%b), to_apply=%add
  %slice-start = ((bf16[128,256]{1,0}), bf16[8,256]{1,0:S(1)}, s32[]{:S(2)}) slice-start((bf16[128,256]{1,0}) %p.1), slice={[0:8], [0:256]}
  ROOT %tuple = (f32[128,256]{1,0:T(8,128)}) tuple(%fusion.7)
}
"""  # noqa: E501


def test_each_line_is_an_operation_with_its_arrays() -> None:
    program = hlo.parse(FRAGMENT)
    assert [instruction.operation for instruction in program.instructions] == [
        "parameter", "convert", "parameter", "parameter", "add", "parameter", "constant", "fusion", "all-gather-start",
        "all-gather-done", "collective-permute-start", "all-reduce", "slice-start", "tuple",
    ]  # fmt: skip
    assert [instruction.is_fused for instruction in program.instructions] == [True] * 5 + [False] * 9
    assert program.entry == "main.9"
    assert program.header.endswith('"a.py"\n\n')


def test_the_parts_of_an_instruction() -> None:
    named = {instruction.name: instruction for instruction in hlo.parse(FRAGMENT).instructions}
    fusion = named["fusion.7"]
    assert (fusion.operands, fusion.computation, fusion.is_root) == (("p.1",), "main.9", False)
    assert fusion.calls == {"calls": ("fused_computation.1",)}, "not what stands in a name"
    assert (fusion.op_name, fusion.frame) == ("jit(call)/body=%add", 7)
    assert fusion.line.startswith("  %fusion.7 = f32")
    assert fusion.line.endswith("stack_frame_id=7}")
    assert named["all-reduce.1"].operands == ("a", "b")
    assert named["slice-start"].operands == ("p.1",)
    assert named["c"].operands == ()
    assert named["tuple"].is_root
    assert named["p.1"].frame is None
    assert named["p.1"].op_name == ""


def test_results_of_what_is_started_are_without_its_operands() -> None:
    named = {instruction.name: instruction for instruction in hlo.parse(FRAGMENT).instructions}
    assert [array.bare for array in named["all-gather-start"].arrays] == [
        Array("bf16", (16, 256)), Array("bf16", (128, 256)),
    ]  # fmt: skip
    for name, result in {
        "all-gather-start": ["bf16[128,256]"],
        "permute-start": ["pred[8,16]"],
        "slice-start": ["bf16[8,256]"],
        "all-reduce.1": ["f32[4]", "f32[]"],
    }.items():
        assert [str(one) for one in named[name].results] == result


def test_square_arrays_are_found_inside_of_fusions_too() -> None:
    program = hlo.parse(FRAGMENT)
    assert hlo.square_arrays(program.instructions, 128) == [
        Array("bf16", (128, 256)),
        Array("f32", (128, 256)),
    ]
    assert hlo.square_arrays(program.instructions, 129) == []


def test_a_program_of_this_compiler() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("tp",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("tp"))
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=split)
    text = jax.jit(lambda x: jnp.tanh(x).sum(0)).lower(x).compile().as_text()
    program = hlo.parse(text)
    [found] = hlo.list_collectives(program, mesh)
    assert (found.kind, found.axes, found.group, found.count, found.nbytes) == (
        "all-reduce",
        ("tp",),
        4,
        1,
        32 * 4,
    )
    assert found.source is not None
    assert found.source.file == __file__
    assert "jnp.tanh(x).sum(0)" in found.source.code
    lines = sum(line.startswith("  ") for line in text.splitlines())
    assert len(program.instructions) == lines, "no line is lost"


class Looked(str):
    """A text that counts the characters among which something is looked for, or which are copied."""

    characters = 0

    def _looked(self, found: int, start: int = 0, end: int | None = None) -> int:
        end = len(self) if end is None else end
        Looked.characters += (end if found < 0 else found) - start
        return found

    def find(self, wanted: str, *span: int) -> int:
        return self._looked(super().find(wanted, *span), *span)

    def index(self, wanted: str, *span: int) -> int:
        return self._looked(super().index(wanted, *span), *span)

    def count(self, wanted: str, *span: int) -> int:
        self._looked(-1, *span)
        return super().count(wanted, *span)

    def __getitem__(self, place: int | slice) -> str:
        found = super().__getitem__(place)
        Looked.characters += len(found)
        return found


class Pattern:
    """A regular expression that counts the characters which it may look at."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def __getattr__(self, name: str) -> Callable[..., object]:
        def look(text: str, start: int = 0, end: int | None = None) -> object:
            end = len(text) if end is None else end
            Looked.characters += end - start
            return getattr(self.pattern, name)(text, start, end)

        return look


def test_long_programs_take_work_in_proportion(
    lines_run: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of ours, which no busy machine makes more, and characters looked at, where nothing of ours runs."""
    start = FRAGMENT.index("  %fusion.7")
    end = FRAGMENT.index("  %all-gather-start")
    for name, pattern in vars(module).copy().items():
        if isinstance(pattern, re.Pattern):
            monkeypatch.setattr(module, name, Pattern(pattern))

    def work(times: int) -> tuple[int, int]:
        text = Looked(FRAGMENT[:start] + FRAGMENT[start:end] * times + FRAGMENT[end:])
        programs: list[hlo.Program] = []
        Looked.characters = 0
        lines = lines_run(lambda: programs.append(hlo.parse(text)))
        assert len(programs[0].instructions) == 13 + times
        assert Looked.characters > len(text), "they are counted"
        return lines, Looked.characters

    few, many = work(100), work(1000)
    assert all(more < 10 * less for less, more in zip(few, many, strict=True))


def test_nothing_is_no_program() -> None:
    program = hlo.parse("")
    assert program.instructions == ()


SEVERAL_LINES = """\
HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %kernel = f32[8,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", META={kernel_metadata={
"profile":"{\\"block\\": 1024}"
}}, metadata={op_name="jit(f)/kernel/pallas_call"}, backend_config={"custom_call_config":{"cost_estimate":COST}}
  ROOT %out = f32[8,128]{1,0:T(8,128)} all-reduce(%kernel), replica_groups={}, to_apply=%add
}
""".replace("META", "frontend_attributes").replace("COST", '{"flops":"77","bytes_accessed":"8192"}')


def test_metadata_of_several_lines_is_a_part_of_its_instruction() -> None:
    """jax's own splash attention has such; what follows it belongs to the program as well."""
    program = hlo.parse(SEVERAL_LINES)
    assert [
        instruction.name for instruction in program.instructions if instruction.computation == "main"
    ] == ["x", "kernel", "out"]
    [kernel] = [instruction for instruction in program.instructions if instruction.name == "kernel"]
    assert kernel.op_name == "jit(f)/kernel/pallas_call"
    assert [(one.flops, one.hbm_bytes) for one in hlo.list_kernels(program)] == [(77, 8192)]
    assert hlo.count_product_flops(program) == 77
