"""Kernels executed bundle by bundle: loops, predicates, delay slots and spills, in listings as libtpu writes them."""

import pytest

from tpuport.hardware.schedules import execute, read_listing, scalar_execution
from tpuport.hardware.schedules.bundle_listing import Branch, Guard, ScalarInstruction

NOTHING = "{ %v9_v9 = vadd.f32 %v8_v8, %v8_v8 }"


def listing(*bundles: str) -> str:
    """Bundles, each a line of its own at the next address."""
    return "\n".join(f"{hex(address):>8}   :  {bundle}" for address, bundle in enumerate(bundles))


def cycles(*bundles: str) -> tuple[int, bool]:
    """How many bundles are executed, and whether that is exact."""
    result = execute(read_listing(listing(*bundles)))
    return result.cycles, result.exact


def loop(rounds: int | str, *body: str) -> list[str]:
    """A loop of three bundles, its body and the four bundles after its branch."""
    return [
        "{ %s1_s5 = smov 0 }",
        "{ %s2_s5 = sphi %s1_s5, %s3_s5 } /* Start region 7 */",
        *body,
        "{ %s3_s5 = sadd.s32 1, %s2_s5  ;;  %v1_v1 = vld [vmem:[%s2_s5]] }",
        f"{{ %p4_p1 = scmp.ge.s32.totalorder %s3_s5, {rounds} /* loop exit test */ }}",
        "{ %9 = sbr.rel (!%p4_p1) target = $region7 } /* End region 7 */",
        *[NOTHING] * 4,
    ]


def test_a_straight_line_takes_a_cycle_a_bundle() -> None:
    assert cycles(*[NOTHING] * 6) == (6, True)
    assert cycles() == (0, True)


@pytest.mark.parametrize("rounds", [1, 2, 13])
def test_a_loop_counts_as_often_as_it_runs_with_its_delay_slots(rounds: int) -> None:
    # Each round has four bundles and the four after the branch, which run whether or not it is taken.
    assert cycles(*loop(rounds)) == (1 + 8 * rounds, True)


def test_a_longer_body_counts_in_each_round() -> None:
    assert cycles(*loop(5, NOTHING, NOTHING)) == (1 + 10 * 5, True)


def test_what_only_a_run_knows_counts_once() -> None:
    assert cycles(*loop("%s90_s9")) == (1 + 8, False)


def test_an_instruction_in_a_delay_slot_is_executed_before_the_jump() -> None:
    bundles = [
        "{ %s2_s5 = sphi %s1_s5, %s3_s5 } /* Start region 7 */",
        "{ %p4_p1 = scmp.ge.s32.totalorder %s2_s5, 3 }",
        "{ %9 = sbr.rel (!%p4_p1) target = $region7 }",
        "{ %s3_s5 = sadd.s32 1, %s2_s5 }",
        *[NOTHING] * 3,
    ]
    # 0, 1, 2 and 3: four rounds of three bundles and four slots.
    assert cycles("{ %s1_s5 = smov 0 }", *bundles) == (1 + 7 * 4, True)


def test_code_that_is_jumped_over_does_not_count() -> None:
    skip = ["{ %9 = sbr.rel target = $region3 }", *[NOTHING] * 4]
    assert cycles(*skip, *[NOTHING] * 10, f"{NOTHING} /* Start region 3 */") == (6, True)


@pytest.mark.parametrize(("value", "taken"), [(0, False), (1, True)])
def test_predicates_are_computed(value: int, taken: bool) -> None:
    bundles = [
        f"{{ %s1_s1 = smov {value} }}",
        "{ %p1_p1 = scmp.eq.s32.totalorder %s1_s1, 1 }",
        "{ %p2_p2 = pneg %p1_p1 }",
        "{ %p3_p3 = pnand %p1_p1, %p1_p1 }",
        "{ %p4_p4 = por %p2_p2, %p3_p3 }",
        "{ %9 = sbr.rel (!%p4_p4) target = $region3 }",
        *[NOTHING] * 4,
        *[NOTHING] * 10,
        f"{NOTHING} /* Start/End empty region 3 */",
    ]
    assert cycles(*bundles) == (11 if taken else 21, True)


@pytest.mark.parametrize(("condition", "rounds"), [(1, 2), (0, 6)])
def test_an_instruction_under_a_guard_has_its_other_value(condition: int, rounds: int) -> None:
    bound = [
        f"{{ %s70_s7 = smov {condition} }}",
        "{ %p71_p7 = scmp.ne.s32.totalorder %s70_s7, 0  ;;  %s72_s8 = smov 6 }",
        "{ %s73_s9 = smov (%p71_p7, %s72_s8), 2 }",
    ]
    assert cycles(*bound, *loop("%s73_s9")) == (3 + 1 + 8 * rounds, True)
    # The condition may have to be false.
    negated = [bound[0], bound[1], "{ %s73_s9 = smov (!%p71_p7, %s72_s8), 2 }"]
    assert cycles(*negated, *loop("%s73_s9")) == (3 + 1 + 8 * (8 - rounds), True)


def test_a_spilled_register_is_loaded_again() -> None:
    spilled = [
        "{ %s70_s7 = smov 4 }",
        "{ %71 = sst [smem:[#allocation5_spill]] %s70_s7 }",
        "{ %s70_s7 = smov 100 }",
        "{ %s72_s8 = sld [smem:[#allocation5_spill]] }",
    ]
    assert cycles(*spilled, *loop("%s72_s8")) == (4 + 1 + 8 * 4, True)


def test_instructions_of_a_bundle_read_before_any_writes() -> None:
    exchange = [
        "{ %s70_s7 = smov 3  ;;  %s71_s8 = smov 5 }",
        "{ %s70_s7 = smov %s71_s8  ;;  %s71_s8 = smov %s70_s7 }",
    ]
    assert cycles(*exchange, *loop("%s71_s8")) == (2 + 1 + 8 * 3, True)


@pytest.mark.parametrize(
    ("instruction", "value"),
    [
        ("sadd.s32 2, 3", 5),
        ("ssub.s32 7, 3", 4),
        ("smul.u32 2, 3", 6),
        ("sshll.u32 1, 3", 8),
        ("sshrl.u32 32, 3", 4),
        ("sand.u32 7, 12", 4),
        ("sor.u32 4, 1", 5),
        ("sxor.u32 6, 3", 5),
        ("smin.u32 9, 4", 4),
        ("smax.u32 2, 4", 4),
        ("sadd.s32 4294967295, 5", 4),
    ],
)
def test_scalar_arithmetic(instruction: str, value: int) -> None:
    assert cycles(f"{{ %s70_s7 = {instruction} }}", *loop("%s70_s7")) == (2 + 8 * value, True)


def test_a_kernel_without_end_is_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalar_execution, "_MOST_BRANCHES", 50)
    endless = [f"{NOTHING} /* Start region 1 */", "{ %9 = sbr.rel target = $region1 }", *[NOTHING] * 4]
    count, exact = cycles(*endless)
    assert not exact
    assert 50 * 6 <= count <= 52 * 6


def test_comments_labels_and_other_units_are_not_scalar_code() -> None:
    text = """
= control target key start
LH: loop header
     0   :  { %s1_s5 = smov 0 /* a comment;; %s9_s9 = smov 9 */ }
   0x1 LB: > { %v1_v1 = vmul.f32 %v2_v2, %v3_v3  ;;  %p2_p1 = scmp.lt.s32.totalorder (%p7_p0), %s1_s5, 8 }
   0x2   : >> { %3 = sbr.rel (%p2_p1) target = $region12 } /* Start region 4 */
"""
    first, second, third = read_listing(text)
    assert first.instructions == (ScalarInstruction("s1", "s5", "smov", "", ("0",)),)
    [compare] = second.instructions
    assert (compare.result, compare.guard, compare.operands) == ("p2", Guard("p7", False), ("s1", "8"))
    assert third.branch == Branch("12", Guard("p2", False))
    assert third.regions == ("4",)


def test_comments_may_go_on_in_further_lines() -> None:
    text = """
     0   :  { %s1_s5 = smov 0 /* hlo: a kernel
  that %s9_s9 = smov 9 is a comment of */ ;;  %s2_s6 = smov 1 } /* a part
 */ /* Start region 4 */
   0x1   :  {}
"""
    first, second = read_listing(text)
    assert [instruction.result for instruction in first.instructions] == ["s1", "s2"]
    assert (first.regions, second.regions) == (("4",), ())
