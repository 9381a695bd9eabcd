"""Weights that products read one by one, in programs whose instructions take what the test says.

The examples of TPC025 in `test_advice_rules.py` are compiled.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpuport.hardware import GENERATIONS
from tpuport.topology import hlo
from tpuport.topology.advice.data_movement import DataMovement
from tpuport.topology.advice.repeated_reads import RepeatedRead, repeated_reads
from tpuport.topology.timing.instruction_work import Work
from tpuport.topology.timing.timeline import walk

V6E = GENERATIONS["v6e"]
WIDTH = 1024
NBYTES = 2 * WIDTH * WIDTH
READ_SECONDS = NBYTES / V6E.device.hbm_bandwidth
ROWS, WEIGHT = "bf16[64,1024]{1,0:T(8,128)(2,1)}", "bf16[1024,1024]{1,0:T(8,128)(2,1)}"
NEAR = "bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}"
HEAD = f"""\
HloModule jit_f, is_scheduled=true

%multiply (a: bf16[64,1024], b: bf16[1024,1024]) -> bf16[64,1024] {{
  %a = {ROWS} parameter(0)
  %b = {WEIGHT} parameter(1)
  ROOT %product = {ROWS} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

%multiply_again (c: bf16[64,1024], d: bf16[1024,1024]) -> bf16[64,1024] {{
  %c = {ROWS} parameter(0)
  %d = {WEIGHT} parameter(1)
  ROOT %product.2 = {ROWS} dot(%c, %d), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

ENTRY %main (w: bf16[1024,1024], x: bf16[64,1024], y: bf16[64,1024]) -> bf16[64,1024] {{
  %w = {WEIGHT} parameter(0), metadata={{op_name="weights['proj.weight']"}}
  %x = {ROWS} parameter(1)
  %y = {ROWS} parameter(2)
"""


def product(name: str, rows: str, weight: str = "w") -> str:
    computation = {"first": "multiply", "second": "multiply_again"}[name]
    return f"  %{name} = {ROWS} fusion(%{rows}, %{weight}), kind=kOutput, calls=%{computation}\n"


END = f"  ROOT %end = ({ROWS}, {ROWS}) tuple(%first, %second)\n}}\n"
INDEPENDENT = product("first", "x") + product("second", "y")
DEPENDENT = product("first", "x") + product("second", "first")
PREFETCHED = (
    f"  %start = ({NEAR}, {WEIGHT}, u32[]{{:S(2)}}) copy-start(%w)\n  %near = {NEAR} copy-done(%start)\n"
    + product("first", "x", "near")
    + product("second", "y", "near")
)
# As it is handed to a loop.
IN_A_TUPLE = PREFETCHED + f"  %pair = ({WEIGHT}, {WEIGHT}) tuple(%w, %w)\n"


def reads(lines: str, core_seconds: float) -> list[RepeatedRead]:
    """Of a program whose products take this of the core, and twice as long to read their weight from HBM."""
    program = hlo.parse(HEAD + lines + END)

    def work(instruction: hlo.Instruction) -> Work:
        if instruction.operation == "fusion":
            return Work("matrix products", core_seconds=core_seconds, hbm_bytes=NBYTES)
        return Work("copies and layouts")

    timeline = walk(program, cast(Any, SimpleNamespace(work=work)), V6E)
    evidence = SimpleNamespace(
        report=SimpleNamespace(timeline=timeline, generation="v6e"),
        program=program,
        compiled=program,
        movement=DataMovement(program, {"proj.weight"}),
    )
    return list(repeated_reads(cast(Any, evidence)))


@pytest.mark.parametrize(("share", "saved"), [(0.0, 1.0), (0.25, 0.75), (2.0, 0.0)])
def test_a_read_costs_what_it_takes_longer_than_the_core(share: float, saved: float) -> None:
    [found] = reads(INDEPENDENT, share * READ_SECONDS)
    assert (found.weight, found.nbytes) == ("proj.weight", NBYTES)
    assert [instruction.name for instruction in found.products] == ["product", "product.2"]
    assert found.seconds == pytest.approx(saved * READ_SECONDS), "one of two reads"


@pytest.mark.parametrize(
    "lines",
    [DEPENDENT, PREFETCHED, IN_A_TUPLE],
    ids=["one needs the other", "read into VMEM once", "in a tuple"],
)
def test_what_has_to_be_read_twice_or_is_not_is_left_alone(lines: str) -> None:
    assert reads(lines, 0.0) == []
