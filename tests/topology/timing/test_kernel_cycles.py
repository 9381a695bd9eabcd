"""Which schedule an instruction has, and its cycles beside counts that are written out by hand."""

import pytest

from tpuport.hardware.schedules import KernelSchedule, execute, read_listing
from tpuport.topology import hlo
from tpuport.topology.timing.kernel_cycles import KernelCycles, count_cycles

WINDOW = ', backend_config={"window_config":{"iteration_bounds":["4"],"estimated_cycles":"900"}}'
TILED, TURNED = "f32[8,128]{1,0:T(8,128)}", "f32[8,128]{0,1:T(8,128)}"
TEXT = f"""\
HloModule jit_f, is_scheduled=true

%twice (a: f32[8,128]) -> f32[8,128] {{
  %a = {TILED} parameter(0)
  ROOT %sum = {TILED} add(%a, %a), metadata={{op_name="jit(f)/first/add"}}
}}

%twice_again (b: f32[8,128]) -> f32[8,128] {{
  %b = {TILED} parameter(0)
  ROOT %total = {TILED} add(%b, %b), metadata={{op_name="jit(f)/second/add"}}
}}

%square (c: f32[8,128]) -> f32[8,128] {{
  %c = {TILED} parameter(0)
  ROOT %product = {TILED} multiply(%c, %c)
}}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {{
  %x = {TILED} parameter(0)
  %fusion.1 = {TILED} fusion(%x), kind=kLoop, calls=%twice{WINDOW}
  %fusion.2 = {TILED} fusion(%fusion.1), kind=kLoop, calls=%twice_again, metadata={{op_name="jit(f)/add"}}{WINDOW}
  %fusion.3 = {TILED} fusion(%fusion.2), kind=kLoop, calls=%square{WINDOW}
  %turned = {TURNED} copy(%fusion.3)
  %fusion.4 = {TILED} fusion(%turned), kind=kLoop, calls=%twice{WINDOW}
  ROOT %negative = {TILED} negate(%fusion.4)
}}
"""
# Two bundles, five rounds of three bundles up to the branch and of its four delay slots, and one bundle.
LISTING = """\
     0   :  { %s1_s1 = smov 0 }
   0x1   :  { %3 = dma.hbm_to_vmem [thread:$0]  %s8_s8, 1024 }
   0x2 LB: > { %s3_s1 = sphi %s1_s1, %s2_s1 /* iteration index */ } /* Start region 9 */
   0x3   : > { %s2_s1 = sadd.s32 1, %s3_s1 ;;  %p1_p1 = scmp.ge.s32.totalorder %s3_s1, 4 }
   0x4   :  { %16 = sbr.rel (!%p1_p1) target = $region9 }
   0x5   :  {}
   0x6   :  {}
   0x7   :  {}
   0x8   :  {}
   0x9   :  { %17 = vnop }
"""
BY_HAND = 2 + 5 * (3 + 4) + 1


def schedule(name: str, cycles: int = 100, copies: int = 2, exact: bool = True) -> KernelSchedule:
    return KernelSchedule(name, cycles, copies, exact)


def test_a_listing_counts_as_it_does_by_hand() -> None:
    execution = execute(read_listing(LISTING))
    assert (execution.cycles, execution.copies, execution.exact) == (BY_HAND, 1, True)
    schedules = {"fusion.3": KernelSchedule("fusion.3", execution.cycles, execution.copies, execution.exact)}
    assert count_cycles(hlo.parse(TEXT), schedules)["fusion.3"] == KernelCycles(BY_HAND, 1, "schedule")


def test_instructions_that_are_the_same_but_for_their_names_share_a_schedule() -> None:
    cycles = count_cycles(hlo.parse(TEXT), {"fusion.1": schedule("fusion.1", exact=False)})
    shared = KernelCycles(100, 2, "schedule", exact=False)
    assert cycles["fusion.1"] == cycles["fusion.2"] == shared


def test_parameters_stand_in_any_order_in_the_text_of_a_reduction() -> None:
    first, second = "%left = f32[] parameter(0)", "%right = f32[] parameter(1)"
    regions = [
        f"%region_{index} (left: f32[], right: f32[]) -> f32[] {{\n  {one}\n  {other}\n"
        f"  ROOT %result = f32[] {operation}(%left, %right)\n}}\n"
        for index, (one, other, operation) in enumerate(
            [(first, second, "subtract"), (second, first, "subtract"), (first, second, "add")]
        )
    ]
    reductions = [
        f"  %reduce.{index} = f32[8] reduce(%x, %zero), dimensions={{1}}, to_apply=%region_{index}{WINDOW}\n"
        for index in range(3)
    ]
    text = (
        "HloModule jit_f, is_scheduled=true\n\n" + "\n".join(regions)
        + f"\nENTRY %main (x: f32[8,128]) -> f32[8] {{\n  %x = {TILED} parameter(0)\n  %zero = f32[] constant(0)\n"
        + "".join(reductions) + "  ROOT %last = f32[8] negate(%reduce.2)\n}\n"
    )  # fmt: skip
    cycles = count_cycles(hlo.parse(text), {"reduce.0": schedule("reduce.0")})
    assert [cycles[f"reduce.{index}"].cycles for index in range(3)] == [100, 100, 900]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param("fusion.3", id="computes something else"),
        pytest.param("fusion.4", id="reads another layout"),
    ],
)
def test_what_differs_has_the_compilers_estimate(other: str) -> None:
    cycles = count_cycles(hlo.parse(TEXT), {"fusion.1": schedule("fusion.1")})
    assert cycles[other] == KernelCycles(900, 0, "compiler's estimate", exact=False)


def test_other_windows_are_other_code() -> None:
    text = TEXT.replace(
        '["4"],"estimated_cycles":"900"}}\n  %fusion.3', '["2"],"estimated_cycles":"700"}}\n  %fusion.3'
    )
    cycles = count_cycles(hlo.parse(text), {"fusion.1": schedule("fusion.1")})
    assert cycles["fusion.2"] == KernelCycles(700, 0, "compiler's estimate", exact=False)


def test_its_own_schedule_goes_before_that_of_another() -> None:
    schedules = {"fusion.1": schedule("fusion.1"), "fusion.2": schedule("fusion.2", cycles=300)}
    cycles = count_cycles(hlo.parse(TEXT), schedules)
    assert [cycles[name].cycles for name in ("fusion.1", "fusion.2")] == [100, 300]


def test_what_has_neither_is_left_out_and_so_is_what_is_fused() -> None:
    assert set(count_cycles(hlo.parse(TEXT), {})) == {"fusion.1", "fusion.2", "fusion.3", "fusion.4"}
