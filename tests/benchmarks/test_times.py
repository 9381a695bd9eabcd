"""What the comparison with published times adds up to, and that its cases can be told apart."""

import math

import pytest

from benchmarks import times
from benchmarks.times_cases import CASES
from benchmarks.times_programs import ROWWISE, hunyuan_one_by_one


def record(name: str, published: float, estimated: float, doubt: str = "", generation: str = "v6e") -> dict:
    return {
        "name": name, "published_seconds": published, "estimated_seconds": estimated, "doubt": doubt,
        "generation": generation,
    }  # fmt: skip


def test_errors_are_relative_to_the_publication():
    assert times.error(record("a", 2.0, 1.5)) == pytest.approx(-0.25)


def test_cases_in_doubt_are_not_counted():
    summary = times.summarize([record("a", 1.0, 1.1), record("b", 1.0, 9.0, doubt="a guess")])
    assert summary["cases"] == 1
    assert summary["all"]["worst"] == pytest.approx(0.1)


def test_factors_are_fitted_on_one_half_and_judged_on_the_other():
    records = [record("d", 1.0, 0.5), record("a", 1.0, 0.8), record("b", 1.0, 0.7), record("c", 1.0, 0.8)]
    summary = times.summarize(records)
    # In the order of names, "a" and "c" are fitted.
    assert summary["factors"] == {"v6e": pytest.approx(1.25)}
    assert summary["judged half, without factors"]["worst"] == pytest.approx(0.5)
    assert summary["judged half, with factors"]["worst"] == pytest.approx(0.375)


def test_a_generation_that_only_the_judged_half_has_gets_no_factor():
    summary = times.summarize([record("a", 1.0, 0.5), record("b", 1.0, 0.9, generation="v4")])
    assert summary["judged half, with factors"] == summary["judged half, without factors"]


def test_programs_of_few_blocks_stand_for_all_of_them():
    few, more = hunyuan_one_by_one("rowwise", ROWWISE)
    assert [few[0].name, more[0].name] == [
        f"hunyuan-video-1.5-rowwise-{blocks}-blocks-v6e-8" for blocks in (2, 4)
    ]
    # A program with b blocks takes 7 + 3 b: that of 54 takes 169.
    assert few[1] * (7 + 3 * 2) + more[1] * (7 + 3 * 4) == 7 + 3 * 54


def test_the_stored_estimates_rank_what_was_measured():
    stored = times.load()
    whole, divided = (stored[f"hunyuan-video-1.5-{name}-v6e-8"] for name in ("replicated", "rowwise"))
    assert whole["published_seconds"] < divided["published_seconds"]
    assert whole["estimated_seconds"] < 0.98 * divided["estimated_seconds"]


def test_names_are_unique_and_meshes_have_the_slices_devices():
    from tpuport.hardware import parse_slice

    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.source.startswith("https://")
        # What is in another part as well is taken away.
        assert sum(count for _, count in case.parts) >= 1
        for program, _ in case.parts:
            devices = math.prod(program.mesh.values())
            assert devices in (1, parse_slice(program.topology).devices)
