"""Counting the bundles that a kernel executes: loops, conditions, branches and copies, as libtpu lists them."""

from tpuport.schedules import execute, read_listing


def cycles(*lines: str) -> int:
    return execute(read_listing("\n".join(lines))).cycles


def loop(rounds: str, *body: str) -> list[str]:
    """A loop whose counter is in the register s1; a branch is followed by four bundles."""
    return [
        "     0   :  { %s1_s1 = smov 0 }",
        "   0x1 LB: > { %s3_s1 = sphi %s1_s1, %s2_s1 /* iteration index */ } /* Start region 9 */",
        *body,
        "   0x7   : > { %s2_s1 = sadd.s32 1, %s3_s1 }",
        f"   0x8   : > {{ %p1_p1 = scmp.ge.s32.totalorder %s2_s1, {rounds} /* loop exit test */ }}",
        "   0x9   :  { %16 = sbr.rel (!%p1_p1) target = $region9 }",
        "   0xa   :  {}", "   0xb   :  {}", "   0xc   :  {}", "   0xd   :  {}",
    ]  # fmt: skip


def test_straight_code_takes_a_cycle_for_each_bundle() -> None:
    lines = ["     0   :  { %1 = vnop }", "   0x1   :  {}", "   0x2   :  { %2 = vnop } /* End region 1 */"]
    assert cycles("= control target key start", "LH: loop header", "", *lines) == 3


def test_a_loop_counts_as_often_as_it_runs() -> None:
    # One bundle before it; four a round, and the four after a branch, taken or not.
    assert cycles(*loop("10")) == 1 + 10 * 8
    assert cycles(*loop("20")) - cycles(*loop("10")) == 10 * 8


def test_a_loop_whose_end_is_unknown_counts_once() -> None:
    execution = execute(read_listing("\n".join(loop("%s99_s9"))))
    assert execution.cycles == 1 + 8
    assert not execution.exact


def conditional(predicate: str, *code: str) -> list[str]:
    """Code that is left out where a predicate of the counter holds."""
    return [
        f"   0x2   : > {{ %p2_p2 = {predicate} }}",
        "   0x3   : > { %17 = sbr.rel (%p2_p2) target = $region5 }",
        *["   0x4   : > {}"] * 4,
        *code,
        "   0x6 PF: > { %5 = vnop } /* Start/End empty region 5 */",
    ]


def test_a_condition_on_the_counter_holds_in_some_rounds() -> None:
    code = ["   0x5   : > { %6 = vnop }"] * 100
    everywhere = cycles(*loop("10", *conditional("scmp.lt.s32.totalorder %s3_s1, 0", *code)))
    skipped_once = cycles(*loop("10", *conditional("scmp.lt.s32.totalorder %s3_s1, 1", *code)))
    only_once = cycles(*loop("10", *conditional("scmp.ge.s32.totalorder %s3_s1, 1", *code)))
    assert everywhere - skipped_once == 100
    assert everywhere - only_once == 900


def test_what_depends_on_a_run_counts() -> None:
    code = ["   0x5   : > { %6 = vnop }"] * 100
    execution = execute(
        read_listing("\n".join(loop("10", *conditional("scmp.lt.s32.totalorder %s77_s7, 0", *code))))
    )
    assert execution.cycles > 1000
    assert not execution.exact


def test_a_spilled_value_comes_back() -> None:
    body = [
        "   0x2   : > { %9 = sst [smem:[#allocation4_spill]] %s3_s1  ;;  %7 = vnop }",
        "   0x3   : > { %s8_s5 = sld [smem:[#allocation4_spill]] }",
    ]
    code = ["   0x5   : > { %6 = vnop }"] * 50
    condition = conditional("scmp.ne.s32.totalorder %s8_s5, 3", *code)
    execution = execute(read_listing("\n".join(loop("10", *body, *condition))))
    without = execute(
        read_listing("\n".join(loop("10", *body, *conditional("scmp.eq.s32.totalorder 1, 1", *code))))
    )
    assert execution.cycles - without.cycles == 50
    assert execution.exact


def test_scalar_arithmetic_is_that_of_32_bits() -> None:
    """A counter that goes down, from 8 by a shift, until a selected bound."""
    lines = [
        "     0   :  { %s1_s1 = smov 4  ;;  %p9_p9 = scmp.lt.u32.totalorder 4294967295, 5 }",
        "   0x1   :  { %s4_s1 = sshll.u32 %s1_s1, 1 }",
        "   0x2   :  { %s5_s2 = scalar_select /*predicate=*/%p9_p9, /*on_true=*/7, /*on_false=*/2 }",
        "   0x3 LB: > { %s3_s1 = sphi %s4_s1, %s2_s1 } /* Start region 9 */",
        "   0x4   : > { %s2_s1 = sadd.s32 4294967295, %s3_s1 }",
        "   0x5   : > { %p1_p1 = scmp.eq.s32.totalorder %s2_s1, %s5_s2 }",
        "   0x6   : > { %p2_p2 = pneg %p1_p1 }",
        "   0x7   :  { %16 = sbr.rel (%p2_p2) target = $region9 }",
        *["   0x8   :  {}"] * 4,
    ]
    # From 8 to 2 in six rounds: as an unsigned number, -1 is not less than 5.
    assert cycles(*lines) == 3 + 6 * 9


def test_a_move_under_a_condition_keeps_the_old_value() -> None:
    lines = [
        "     0   :  { %s1_s1 = smov 6  ;;  %p3_p3 = scmp.gt.s32.totalorder 1, 2 }",
        "   0x1   :  { %s2_s2 = smov (%p3_p3, %s1_s1), 50  ;;  %s7_s3 = smov 0 }",
        "   0x2 LB: > { %s3_s3 = sphi %s7_s3, %s4_s3 } /* Start region 9 */",
        "   0x3   : > { %s4_s3 = sadd.s32 1, %s3_s3 }",
        "   0x4   : > { %p1_p1 = scmp.ge.s32.totalorder %s4_s3, %s2_s2 }",
        "   0x5   :  { %16 = sbr.rel (!%p1_p1) target = $region9 }",
        *["   0x6   :  {}"] * 4,
    ]
    assert cycles(*lines) == 2 + 6 * 8


def test_copies_count_where_their_condition_holds() -> None:
    body = [
        "   0x2   : > { %p4_p4 = scmp.lt.s32.totalorder %s3_s1, 8 }",
        "   0x3   : > { %30 = dma.hbm_to_vmem [thread:$0]  (%p4_p4), /*hbm=*/%s8_s8, 1024 }",
        "   0x4   : > { %31 = dma.done.wait (%p4_p4), %s9_s9, 1024 }",
        "   0x5   : > { %32 = shalt.err (!%p4_p4) /* BoundsCheck for %30 = dma.hbm_to_vmem [thread:$0] */ }",
    ]
    assert execute(read_listing("\n".join(loop("10", *body)))).copies == 8
