"""Code of a kernel that runs in some rounds of a loop, and the copies that it starts."""

from tpuport.hardware.schedules import execute, read_listing


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


def test_copies_count_where_their_condition_holds() -> None:
    body = [
        "   0x2   : > { %p4_p4 = scmp.lt.s32.totalorder %s3_s1, 8 }",
        "   0x3   : > { %30 = dma.hbm_to_vmem [thread:$0]  (%p4_p4), /*hbm=*/%s8_s8, 1024 }",
        "   0x4   : > { %31 = dma.done.wait (%p4_p4), %s9_s9, 1024 }",
        "   0x5   : > { %32 = shalt.err (!%p4_p4) /* BoundsCheck for %30 = dma.hbm_to_vmem [thread:$0] */ }",
    ]
    assert execute(read_listing("\n".join(loop("10", *body)))).copies == 8


def test_of_two_cores_that_share_the_work_the_first_is_followed() -> None:
    copies = [
        "   0x1   :  { %p2_p2 = scmp.ge.s32.totalorder %s1_s1, 1 }",
        "   0x2   :  { %9 = dma.hbm_to_vmem [thread:$0]  (%p2_p2), /*hbm=*/%s3_s3 }",
        "   0x3   :  { %9 = dma.hbm_to_vmem [thread:$0]  (!%p2_p2), /*hbm=*/%s3_s3 }",
    ]
    number = "     0   :  { %s1_s1 = sld [smem:[#allocation0]] /* core id */ }"
    assert execute(read_listing("\n".join([number, *copies]))).copies == 1
    # What else is in memory is unknown, and both copies count.
    unknown = number.replace("/* core id */", "")
    assert execute(read_listing("\n".join([unknown, *copies]))).copies == 2
