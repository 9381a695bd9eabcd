"""Reading the compiler's files."""

from tpuport.attention.tuning.bundle_schedule import (
    KernelBundles,
    read_kernels,
    section_lengths,
    unit_utilization,
)
from tpuport.hardware.schedules import read_listing

TABLE = """\
== CAPACTIY:
MXU, XLU, VLOAD, VLOAD:FILL
    2     4     3     3
== UTILIZATION:
2 0 1 0
2 0 3 0
0 0 2 3
1 1 0 0
"""


def test_use_is_a_share_of_the_slots() -> None:
    assert unit_utilization(TABLE) == {"MXU": 5 / 8, "XLU": 1 / 16, "VLOAD": 6 / 12, "VLOAD:FILL": 3 / 12}


def listing(*lines: tuple[int, str]) -> str:
    """Bundles at some addresses, and empty ones between them."""
    head = "= control target key start\nLH: loop header\n= control target key end\n\n"
    texts = dict.fromkeys(range(lines[-1][0] + 1), "  :  {}") | dict(lines)
    return head + "\n".join(
        f"{hex(address) if address else '0':>6} {text}" for address, text in texts.items()
    )


def sections(text: str) -> tuple[int, ...]:
    return section_lengths(read_listing(text))


BRANCH = "  : > {{ %1 = sbr.rel (%p0_p0) target = $region{} }}"
TARGET = "PF: > {{ }} /* Start/End empty region {} :: Start region 99 */"


def test_parts_inside_the_step_are_listed_without_those_inside_them() -> None:
    text = listing(
        (0, "  :  { %s0 = smov 0 }"),
        (2, "LB: > { nothing }"),
        (10, BRANCH.format(5)),  # the pipeline's own condition around all
        (20, BRANCH.format(1)),
        (30, TARGET.format(1)),
        (100, BRANCH.format(2)),
        (120, BRANCH.format(3)),
        (150, TARGET.format(3)),
        (200, TARGET.format(2)),
        (900, TARGET.format(5)),
        (910, BRANCH.format(2)),  # back to the start of the loop
    )
    assert sections(text) == (9, 99)


def test_a_target_may_stand_on_a_line_of_comments() -> None:
    text = listing(
        (0, BRANCH.format(5)), (10, BRANCH.format(1)), (30, TARGET.format(1)), (60, TARGET.format(5))
    ).replace("/* Start/End empty region 1", "/* hlo: a kernel\n */ /* Start/End empty region 1")
    assert sections(text) == (19,)


def test_no_condition_at_all() -> None:
    assert sections(listing((0, "  :  { %s0 = smov 0 }"), (7, "LB: > { }"))) == ()


def test_a_kernel_has_what_its_files_say(tmp_path) -> None:
    (tmp_path / "17-attend.3-70-schedule-analysis_final_bundles.txt").write_text(
        'custom-call, custom_call_target="tpu_custom_call"'
    )
    (tmp_path / "17-attend.3-71-final_bundles.txt").write_text(listing((0, "  :  { }"), (11, "  :  { }")))
    (tmp_path / "17-attend.3-72-final_hlo-static-per-bundle-utilization.txt").write_text(TABLE)
    assert read_kernels(tmp_path) == [KernelBundles("attend", 12, (), unit_utilization(TABLE))]


def test_files_of_other_programs_are_no_kernels(tmp_path) -> None:
    (tmp_path / "17-copy.1-01-schedule-analysis_final_bundles.txt").write_text("total scheduled bundles: 5")
    whole = 'total scheduled bundles: 5 custom_call_target="tpu_custom_call"'
    (tmp_path / "17-TLP-01-schedule-analysis_final_bundles.txt").write_text(whole)
    assert read_kernels(tmp_path) == []
