"""The loop around the fixes: to a fixpoint, checked, written whole."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tpuport.lint import fixing
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.run_report import Report

pytestmark = pytest.mark.usefixtures("word_analysis")


def fix(*paths: str, write: bool = True, unsafe: bool = False) -> Report:
    return lint_paths(
        paths, None, Run(fix=Applicability.UNSAFE if unsafe else Applicability.SAFE, write=write, cache=False)
    )


def replacing(old: str, new: str) -> fixing.RewriteText:
    """Rewrites the first one only: the rest is for the next pass."""

    def fix_text(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
        return (text.replace(old, new, 1), 1) if findings and old in text else (text, 0)

    return fix_text


@pytest.fixture(autouse=True)
def _fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixing, "rewrite_text", replacing("BAD", "GOOD"))


def test_fixes_are_repeated_until_there_are_no_more(project: Path) -> None:
    (project / "m.py").write_text("BAD\nBAD # BAD\nWARN\n")
    report = fix("m.py")
    assert (project / "m.py").read_text() == "GOOD\nGOOD # GOOD\nWARN\n"
    assert report.fixed == {"m.py": 3}
    assert [finding.rule for finding in report.findings] == ["TPU501"]
    assert report.exit_code == 0


def test_encoding_and_line_ends_stay(project: Path) -> None:
    file = project / "m.py"
    file.write_bytes(b"# coding: latin-1\r\nBAD = '\xe9'\r\n\r\n")
    fix("m.py")
    assert file.read_bytes() == b"# coding: latin-1\r\nGOOD = '\xe9'\r\n\r\n"
    file.write_bytes(b"\xef\xbb\xbfBAD\n")
    fix("m.py")
    assert file.read_bytes() == b"\xef\xbb\xbfGOOD\n"


def test_a_diff_writes_nothing(project: Path) -> None:
    file = project / "m.py"
    file.write_text("x = 1\nBAD\nBAD")
    report = fix("m.py", write=False)
    assert file.read_text() == "x = 1\nBAD\nBAD"
    assert report.diffs["m.py"] == (
        "--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,3 @@\n x = 1\n-BAD\n-BAD\n\\ No newline at end of file\n"
        "+GOOD\n+GOOD\n\\ No newline at end of file\n"
    )


def test_a_fix_that_does_not_parse_is_not_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixing, "rewrite_text", replacing("BAD", "(("))
    (project / "m.py").write_text("BAD\n")
    report = fix("m.py")
    assert (project / "m.py").read_text() == "BAD\n"
    (failure,) = [finding for finding in report.findings if finding.rule == "TPU006"]
    assert "does not parse" in failure.reason
    assert report.exit_code == 2


def test_a_fix_that_the_encoding_cannot_hold_is_not_written(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "rewrite_text", replacing("BAD", "x = '€'"))
    (project / "m.py").write_text("# coding: latin-1\nBAD\n")
    assert "iso-8859-1 cannot encode" in fix("m.py").findings[0].reason
    assert "BAD" in (project / "m.py").read_text()


def test_fixes_that_go_in_circles_end(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swap(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
        return ("BAD = 1" if text == "BAD = 2" else "BAD = 2"), 1

    monkeypatch.setattr(fixing, "rewrite_text", swap)
    (project / "m.py").write_text("BAD = 1")
    report = fix("m.py")
    assert any("goes in circles" in finding.reason for finding in report.findings)


def test_a_fix_that_raises_ends_only_its_own_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = replacing("BAD", "GOOD")

    def fail(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
        if "poison" in text:
            raise ValueError("on purpose")
        return good(text, findings, unsafe)

    monkeypatch.setattr(fixing, "rewrite_text", fail)
    (project / "a.py").write_text("poison; BAD\n")
    (project / "b.py").write_text("BAD\n")
    report = fix(".")
    assert (project / "b.py").read_text() == "GOOD\n"
    assert "ValueError: on purpose" in next(
        finding.reason for finding in report.findings if finding.rule == "TPU006"
    )


def test_files_that_depend_on_a_fixed_one_are_linted_again(project: Path) -> None:
    (project / "shared.py").write_text("GOOD\n")
    (project / "a.py").write_text("# uses shared.py\nBAD\n")
    assert fix(".").findings == ()


def test_suppressed_and_known_findings_are_not_fixed(project: Path) -> None:
    file = project / "m.py"
    file.write_text("BAD  # tpuport: ignore[TPU101]\n")
    assert fix("m.py").fixed == {}
    assert "BAD" in file.read_text()


def test_a_file_changed_meanwhile_is_not_overwritten(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "m.py"
    file.write_text("BAD\n")
    good = replacing("BAD", "GOOD")

    def slow(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
        file.write_text("BAD  # edited\n")
        return good(text, findings, unsafe)

    monkeypatch.setattr(fixing, "rewrite_text", slow)
    report = fix("m.py")
    assert file.read_text() == "BAD  # edited\n"
    assert any("changed by another program" in finding.reason for finding in report.findings)


def test_only_what_is_asked_for_reaches_the_fixes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, bool]] = []

    def note(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
        given.append((len(findings), unsafe))
        return text, 0

    monkeypatch.setattr(fixing, "rewrite_text", note)
    (project / "m.py").write_text("BAD\nBAD  # tpuport: ignore[TPU1]\n")
    fix("m.py")
    fix("m.py", unsafe=True)
    assert given == [(1, False), (1, True)]


def test_what_could_not_be_rewritten_is_not_called_fixable(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "rewrite_text", replacing("nothing", "something"))
    (project / "m.py").write_text("BAD\n")
    assert lint_paths(["m.py"], None, Run(cache=False)).fixable(Applicability.SAFE) == 1
    assert fix("m.py").fixable(Applicability.SAFE) == 0


@pytest.mark.slow  # tests/cli/test_lint.py: an interrupt leaves every file whole
def test_killed_at_random_moments_every_file_is_the_old_or_the_fixed_one() -> None:
    """A share of `python -m benchmarks.abuse_fix`, in a process of its own, since it forks."""
    command = [sys.executable, "-m", "benchmarks.abuse_fix", "--count", "6"]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=300
    )
    assert result.stdout.endswith(": 6 right\n"), result.stdout + result.stderr
