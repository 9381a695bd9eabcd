"""Which copies are those with which a round of a loop begins or ends."""

import pytest

from tpuport.topology import hlo
from tpuport.topology.advice.reordered_arrays import is_at_border_of_loop

ROWS, TURNED = "f32[512,1024]{1,0:T(8,128)}", "f32[512,1024]{0,1:T(8,128)}"
STATE = f"(s32[], {ROWS})"
TEXT = f"""\
HloModule jit_f, is_scheduled=true

%body (state: {STATE}) -> {STATE} {{
  %state = {STATE} parameter(0)
  %round = s32[] get-tuple-element(%state), index=0
  %rows = {ROWS} get-tuple-element(%state), index=1
  %view = {ROWS} bitcast(%rows)
  %begin = {TURNED} copy(%view)
  %ramp = {TURNED} iota(), iota_dimension=0
  %sum = {TURNED} add(%begin, %ramp)
  %inside = {ROWS} copy(%sum)
  %twice = {ROWS} multiply(%inside, %inside)
  %end = {ROWS} reshape(%twice)
  %end_view = {ROWS} bitcast(%end)
  ROOT %next = {STATE} tuple(%round, %end_view)
}}

%condition (other: {STATE}) -> pred[] {{
  %other = {STATE} parameter(0)
  ROOT %more = pred[] constant(true)
}}

ENTRY %main (pair: {STATE}) -> {STATE} {{
  %pair = {STATE} parameter(0)
  %number = s32[] get-tuple-element(%pair), index=0
  %first = {ROWS} get-tuple-element(%pair), index=1
  %before = {ROWS} copy(%first)
  %start = {STATE} tuple(%number, %before)
  ROOT %loop = {STATE} while(%start), condition=%condition, body=%body
}}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("begin", True), ("end", True), ("inside", False), ("before", False), ("ramp", False)],
)
def test_a_copy_of_what_a_round_is_handed_or_hands_on(name: str, expected: bool) -> None:
    program = hlo.parse(TEXT)
    [copy] = (instruction for instruction in program.instructions if instruction.name == name)
    assert is_at_border_of_loop(program, copy) is expected
