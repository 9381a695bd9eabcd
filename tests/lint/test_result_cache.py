"""What is kept on disk between runs, and when it is not used."""

import json
import os
from pathlib import Path

import pytest

from tpuport.errors import PortError
from tpuport.lint import result_cache
from tpuport.lint.configuration import Settings, find_settings
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.run_report import Report


@pytest.fixture
def settled(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose files count as written long ago."""
    monkeypatch.setattr(result_cache, "_SETTLED_NS", -(10**12))
    return project


def lint(*paths: str, settings: Settings | None = None) -> Report:
    return lint_paths(paths, settings, Run())


def write(file: Path, text: str) -> None:
    """Write with another time than before."""
    before = file.stat().st_mtime_ns if file.exists() else 10**18
    file.write_text(text)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def same(first: Report, second: Report) -> bool:
    names = ("findings", "files", "lines", "entry_points", "traced", "stops", "outside", "suppressed")
    return all(getattr(first, name) == getattr(second, name) for name in names)


CODE = """\
BAD
WARN  # tpuport: ignore[TPU5]
good  # tpuport: ignore[TPU1]
# uses b.py
# uses z.py
def forward(): pass
"""


def test_a_second_run_says_the_same_and_analyses_nothing(settled: Path, word_analysis: list[str]) -> None:
    write(settled / "a.py", CODE)
    write(settled / "b.py", "BAD é\n")
    first = lint("a.py")
    word_analysis.clear()
    second = lint("a.py")
    assert (first.cached, second.cached, word_analysis) == (0, 1, [])
    assert same(first, second)


@pytest.mark.parametrize("changed", ["a.py", "b.py", "z.py"])
def test_a_changed_file_or_dependency_is_analysed_anew(
    settled: Path, word_analysis: list[str], changed: str
) -> None:
    write(settled / "a.py", CODE)
    write(settled / "b.py", "BAD\n")
    lint(".")
    word_analysis.clear()
    write(settled / changed, "x = 1\n")  # z.py appears
    lint(".")
    assert set(word_analysis) == {"a.py", changed}
    word_analysis.clear()
    lint(".")
    assert word_analysis == []


def test_other_settings_share_what_does_not_depend_on_them(settled: Path, word_analysis: list[str]) -> None:
    write(settled / "a.py", CODE)
    lint("a.py")
    word_analysis.clear()
    assert lint("a.py", settings=Settings(select=("TPU5",))).findings == ()
    assert word_analysis == []
    lint("a.py", settings=Settings(torchax=(0, 0, 14)))
    assert word_analysis == ["a.py"]


def test_another_program_does_not_use_it(
    settled: Path, word_analysis: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settled / "a.py", CODE)
    lint("a.py")
    monkeypatch.setattr(result_cache, "_linter_digest", lambda: "another")
    lint("a.py")
    assert word_analysis == ["a.py", "a.py"]


def test_packages_in_another_directory_are_looked_for(
    settled: Path, tmp_path: Path, word_analysis: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settled / "a.py", CODE)
    lint("a.py")
    directory = tmp_path / "elsewhere" / "site-packages"
    directory.mkdir(parents=True)
    monkeypatch.syspath_prepend(directory)
    lint("a.py")
    assert word_analysis == ["a.py", "a.py"]


def test_another_rule_of_the_same_version_size_and_time_does_not_use_it(
    settled: Path, tmp_path: Path, word_analysis: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = tmp_path / "linter" / "rules" / "rule.py"
    rule.parent.mkdir(parents=True)
    monkeypatch.setattr(result_cache, "__file__", str(tmp_path / "linter" / "result_cache.py"))
    monkeypatch.setattr(result_cache, "_linter_digest", result_cache._linter_digest.__wrapped__)
    write(settled / "a.py", CODE)
    for text in ("BAD = 1\n", "BAD = 2\n"):
        rule.write_text(text)
        os.utime(rule, ns=(10**18, 10**18))
        lint("a.py")
        lint("a.py")
    assert word_analysis == ["a.py", "a.py"]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe", b'{"format":1,"files":{"x":3}}']
)
def test_a_damaged_cache_is_as_none(settled: Path, word_analysis: list[str], damage: bytes) -> None:
    write(settled / "a.py", CODE)
    first = lint("a.py")
    files = list(result_cache.cache_directory_for(settled).glob("*/*.json"))
    assert files
    for file in files:
        file.write_bytes(damage)
    assert same(first, lint("a.py"))
    assert same(first, lint("a.py"))
    assert word_analysis == ["a.py", "a.py"]


def test_damage_inside_an_entry_is_as_none(settled: Path, word_analysis: list[str]) -> None:
    write(settled / "a.py", CODE)
    first = lint("a.py")
    (file,) = result_cache.cache_directory_for(settled).glob("*/*.json")
    whole = json.loads(file.read_text())
    for number in range(6):
        broken = json.loads(json.dumps(whole))
        for entry in broken["files"].values():
            entry[number] = [[999]] if number else [999]
        file.write_text(json.dumps(broken))
        assert same(first, lint("a.py")), number


def test_failures_are_not_kept(settled: Path, word_analysis: list[str]) -> None:
    write(settled / "a.py", "CRASH\n")
    lint("a.py")
    lint("a.py")
    assert word_analysis == ["a.py", "a.py"]


def test_a_file_written_just_now_is_not_kept(project: Path, word_analysis: list[str]) -> None:
    (project / "a.py").write_text(CODE)
    lint("a.py")
    lint("a.py")
    assert word_analysis == ["a.py", "a.py"], "it could change again without its time changing"


def test_nothing_is_written_beside_the_code(settled: Path, word_analysis: list[str]) -> None:
    (settled / "deep").mkdir()
    write(settled / "deep/a.py", "")
    lint("deep/a.py")
    assert {path.name for path in settled.iterdir()} == {"pyproject.toml", "deep"}
    assert [path.name for path in (settled / "deep").iterdir()] == ["a.py"]


def test_a_project_has_one_cache_in_the_users_cache(
    settled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/users/cache")
    monkeypatch.setattr("sys.platform", "linux")
    directory = result_cache.cache_directory_for(settled)
    assert directory == result_cache.cache_directory_for(settled / "deep")
    assert directory.parent == Path("/users/cache/tpuport/lint")
    assert directory != result_cache.cache_directory_for(tmp_path)
    monkeypatch.setenv("TPUPORT_CACHE_DIR", "/mine")
    assert result_cache.cache_directory_for(settled).parent == Path("/mine/lint")


def test_old_projects_go(settled: Path, word_analysis: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_cache, "_MAX_PROJECTS", 2)
    directory = result_cache.cache_directory_for(settled)
    for number in range(3):
        old = directory.parent / f"old-{number}"
        old.mkdir(parents=True)
        os.utime(old, (number, number))
    write(settled / "a.py", "")
    lint("a.py")
    assert {path.name for path in directory.parent.iterdir()} == {"old-2", directory.name}


def test_it_can_lie_anywhere(settled: Path, tmp_path: Path, word_analysis: list[str]) -> None:
    write(settled / "a.py", "")
    for _ in range(2):
        lint_paths(["a.py"], None, Run(cache_directory=tmp_path / "elsewhere"))
    assert word_analysis == ["a.py"]
    assert not result_cache.cache_directory_for(settled).exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_in_the_place_of_a_named_cache_is_an_error(
    settled: Path, tmp_path: Path, word_analysis: list[str], name: str
) -> None:
    write(settled / "a.py", "")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(PortError, match=r"the cache cannot be written here: \w+"):
        lint_paths(["a.py"], None, Run(cache_directory=tmp_path / name))
    assert (tmp_path / "file").read_text() == "kept"


def test_a_cache_that_cannot_be_written_is_logged(
    settled: Path, word_analysis: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    write(settled / "a.py", "BAD\n")
    directory = result_cache.cache_directory_for(settled)
    directory.parent.mkdir(parents=True)
    directory.write_text("in the way")
    with caplog.at_level("INFO", logger="tpuport"):
        assert lint("a.py").errors == 1
    assert "cannot be written" in caplog.text


def test_old_variants_go(settled: Path, word_analysis: list[str]) -> None:
    write(settled / "a.py", "")
    for number in range(10):
        lint("a.py", settings=Settings(torchax=(1, number)))
    assert len([file for file in result_cache.cache_directory_for(settled).iterdir() if file.is_dir()]) <= 7


def test_two_runs_at_once_leave_it_whole(settled: Path, word_analysis: list[str]) -> None:
    for name in ("a.py", "b.py"):
        write(settled / name, "BAD\n")
    directory = result_cache.cache_directory_for(settled)
    settings = find_settings([settled])
    first, second = (result_cache.Cache(directory, settings) for _ in range(2))
    from tpuport.lint.workers import analyse_file, make_analyser

    for one, name in ((first, "a.py"), (second, "b.py")):
        path = str(settled / name)
        one.get([path])
        one.put([analyse_file(make_analyser(settings), path)])
    first.save()
    second.save()
    word_analysis.clear()
    assert lint(".").errors == 2
    assert word_analysis == ["a.py"], "the later run's entry stays"
