"""From paths to a report, with an analysis of words."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tpuport
from tpuport.lint.configuration import Settings
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Severity
from tpuport.lint.run_report import Report

pytestmark = pytest.mark.usefixtures("word_analysis")


def lint(*paths: str, settings: Settings | None = None, **run: Any) -> Report:
    return lint_paths(paths, settings, Run(**{"cache": False, **run}))


def places(report: Report) -> list[tuple[str, int, str]]:
    return [(finding.path, finding.line, finding.rule) for finding in report.findings]


def test_findings_are_sorted_and_named_as_the_user_named_the_files(project: Path) -> None:
    (project / "b.py").write_text("BAD\nWARN\n")
    (project / "a.py").write_text("\nBAD; BAD\n")
    assert places(lint(".")) == [
        ("./a.py", 2, "TPU101"), ("./a.py", 2, "TPU101"), ("./b.py", 1, "TPU101"), ("./b.py", 2, "TPU501"),
    ]  # fmt: skip
    assert places(lint("b.py")) == [("b.py", 1, "TPU101"), ("b.py", 2, "TPU501")]


def test_exit_codes(project: Path) -> None:
    (project / "good.py").write_text("def forward(): pass\n")
    (project / "warn.py").write_text("WARN\n")
    (project / "bad.py").write_text("BAD\n")
    (project / "broken.py").write_text("def f(:\n")
    codes = {name: lint(name).exit_code for name in ("good.py", "warn.py", "bad.py", "broken.py", "gone.py")}
    assert codes == {"good.py": 0, "warn.py": 0, "bad.py": 1, "broken.py": 2, "gone.py": 2}


def test_one_files_crash_is_a_finding_and_the_others_are_linted(project: Path) -> None:
    (project / "a.py").write_text("CRASH\n")
    (project / "b.py").write_text("BAD\n")
    report = lint(".")
    assert places(report) == [("./a.py", 1, "TPU006"), ("./b.py", 1, "TPU101")]
    assert "RuntimeError: on purpose (conftest.py:" in report.findings[0].reason
    assert report.exit_code == 2


def test_a_finding_reached_from_two_files_is_told_once(project: Path) -> None:
    (project / "shared.py").write_text("BAD\n")
    for name in ("a.py", "b.py"):
        (project / name).write_text("# uses shared.py\n")
    assert places(lint(".")) == [("./shared.py", 1, "TPU101")]


def test_errors_in_files_that_were_not_named_are_not_listed_and_fail_the_run(project: Path) -> None:
    (project / "shared.py").write_text("BAD\n")
    (project / "a.py").write_text("# uses shared.py\ndef forward(): pass\n")
    report = lint("a.py")
    assert report.findings == ()
    assert report.exit_code == 1
    assert not report.expected_to_trace
    assert "TPU101 in shared.py:1" in report.verdict()


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (
            "def forward(): pass\n",
            True,
            "Expected to trace: no error in the 1 function traced from 1 entry point.",
        ),
        ("def forward(): BAD\n", False, "Not expected to trace: 1 error in or before the 1 function"),
        ("WARN\n", False, "Nothing in these files is traced"),
        ("BAD\n", False, "Not expected to trace: 1 error before anything is traced"),
        ("def forward(): pass\n# (", True, "Expected"),
        ("def forward(: pass\n", False, "is not known: 1 path could not be linted"),
        ("def forward(): BAD  # tpuport: ignore[TPU101]\n", True, "Expected"),
    ],
)
def test_the_verdict(project: Path, code: str, expected: bool, words: str) -> None:
    (project / "m.py").write_text(code)
    report = lint("m.py")
    assert report.expected_to_trace is expected
    assert words in report.verdict()


def test_a_lowered_severity_does_not_make_it_trace(project: Path) -> None:
    (project / "m.py").write_text("def forward(): BAD\n")
    report = lint("m.py", settings=Settings(severities=(("TPU1", Severity.INFO),)))
    assert report.exit_code == 0
    assert [finding.severity for finding in report.findings] == [Severity.INFO]
    assert not report.expected_to_trace


def test_select_ignore_and_files(project: Path) -> None:
    (project / "m.py").write_text("BAD\nWARN\n")
    assert [rule for *_, rule in places(lint("m.py", settings=Settings(select=("TPU5",))))] == ["TPU501"]
    assert [rule for *_, rule in places(lint("m.py", settings=Settings(ignore=("TPU5",))))] == ["TPU101"]
    ignored = Settings(per_file_ignores=(("m.py", ("TPU1",)),), root=project)
    assert [rule for *_, rule in places(lint("m.py", settings=ignored))] == ["TPU501"]


def test_suppressions_count_wherever_the_finding_came_from(project: Path) -> None:
    (project / "shared.py").write_text("BAD  # tpuport: ignore[TPU101]\ngood  # tpuport: ignore[TPU101]\n")
    (project / "a.py").write_text("# uses shared.py\n")
    report = lint(".")
    assert places(report) == [("./shared.py", 2, "TPU003")]
    assert report.suppressed == 1


def test_a_baseline_knows_findings_when_lines_move(project: Path) -> None:
    file = project / "m.py"
    file.write_text("BAD\nBAD\nWARN\n")
    written = lint("m.py", baseline=project / "known.json", write_baseline=True)
    assert (written.known, written.findings, written.exit_code) == (3, (), 0)
    file.write_text("\n\nBAD\nif x:\n    BAD\nBAD\n")
    report = lint("m.py", baseline=project / "known.json")
    assert places(report) == [("m.py", 6, "TPU101")]
    assert (report.known, report.stale) == (2, 1)
    assert not report.expected_to_trace


def test_the_settings_name_the_baseline(project: Path) -> None:
    (project / "m.py").write_text("BAD\n")
    (project / "pyproject.toml").write_text('[tool.tpuport.lint]\nbaseline = "known.json"\n')
    assert lint("m.py", write_baseline=True).known == 1
    assert lint("m.py").findings == ()
    assert json.loads((project / "known.json").read_text())["findings"][0]["path"] == "m.py"


@pytest.mark.parametrize("text", [None, "", "{}", "[1]", '{"format": 1, "findings": [{}]}', '{"format": 7}'])
def test_a_baseline_that_is_none_is_an_error(project: Path, text: str | None) -> None:
    (project / "m.py").write_text("")
    if text is not None:
        (project / "known.json").write_text(text)
    with pytest.raises(tpuport.PortError, match=r"known\.json"):
        lint("m.py", baseline=project / "known.json")


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_baseline_without_an_end_is_an_error(project: Path, kind: str) -> None:
    (project / "m.py").write_text("")
    if kind == "device":
        (project / "known.json").symlink_to("/dev/zero")
    else:
        os.mkfifo(project / "known.json")
    with pytest.raises(tpuport.PortError, match="not a regular file"):
        lint("m.py", baseline=project / "known.json")


def test_nothing_to_lint_is_an_error() -> None:
    with pytest.raises(tpuport.PortError, match="nothing to lint"):
        lint()


def test_a_file_name_that_is_no_text(project: Path) -> None:
    name = os.fsdecode(b"m\xff.py")
    (project / name).write_text("BAD\n")
    assert places(lint(".")) == [(f"./{name}", 1, "TPU101")]


def test_progress_is_told(project: Path) -> None:
    for name in ("a.py", "b.py"):
        (project / name).write_text("")
    seen: list[tuple[int, int]] = []
    lint(".", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
