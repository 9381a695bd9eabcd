"""Elements of tuples that a program names without an instruction."""

from tpuport.topology import hlo

PROGRAM = """HloModule jit_f, is_scheduled=true

%body (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %state = (s32[]{:T(128)}, f32[4,8]{1,0:T(4,128)}) parameter(0)
  %twice = f32[4,8]{1,0:T(4,128)} add(%state#1, %state#1), metadata={op_name="jit(f)/while/body/add" stack_frame_id=3}
  ROOT %next = (s32[]{:T(128)}, f32[4,8]{1,0:T(4,128)}) tuple(%state#0, %twice)
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0:T(4,128)} parameter(0), metadata={op_name="x #1"}
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[4,8]{1,0:T(4,128)}) tuple(%zero, %x)
  %loop = (s32[], f32[4,8]) call(%start), to_apply=%body, metadata={op_name="jit(f)/while" stack_frame_id=7}
  ROOT %out = f32[4,8]{1,0:T(4,128)} negate(%loop#1)
}
"""


def test_an_element_is_an_instruction_with_the_place_of_its_tuple() -> None:
    program = hlo.parse(PROGRAM)
    named = {instruction.name: instruction for instruction in program.instructions}
    element, index = named["loop.element.1"], named["state.element.0"]
    assert (element.operation, element.tuple_index, element.operands) == ("get-tuple-element", 1, ("loop",))
    assert (element.op_name, element.frame) == ("jit(f)/while", 7)
    assert [array.dims for array in (*element.arrays, *index.arrays)] == [(4, 8), ()]
    assert named["twice"].operands == ("state.element.1",) * 2
    assert [operand.name for operand in program.operands(named["next"])] == ["state.element.0", "twice"]
    assert named["x"].op_name == "x #1"


def test_a_program_that_names_none_is_left_as_it_is() -> None:
    text = PROGRAM.replace("%state#1", "%state").replace("%state#0", "%state").replace("%loop#1", "%loop")
    assert len(hlo.parse(text).instructions) == len(hlo.parse(PROGRAM).instructions) - 3
