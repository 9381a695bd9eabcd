"""Which files a path means."""

import os
import stat
from pathlib import Path

import pytest

from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Severity
from tpuport.lint.paths import discover_files, write_atomically
from tpuport.lint.patterns import Excluder


def write(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")


def found(root: Path, *patterns: str, paths: tuple[str, ...] = (".",)) -> list[str]:
    return list(discover_files(paths, Excluder(patterns, root)).files.values())


@pytest.fixture
def tree(project: Path) -> Path:
    write(
        project, "a.py", "pkg/__init__.py", "pkg/b.py", "pkg/c.txt", "pkg/sub/d.py", ".hidden/e.py", "venv/f.py",
        "env2/pyvenv.cfg", "env2/g.py", "build/lib/h.py", "pkg/build/__init__.py", "pkg/build/i.py",
        "node_modules/j.py", "pkg/__pycache__/k.py", "x.egg-info/l.py",
    )  # fmt: skip
    return project


def test_a_directory_is_searched_and_environments_and_builds_are_not(tree: Path) -> None:
    assert found(tree) == [
        "./a.py", "./pkg/__init__.py", "./pkg/b.py", "./pkg/build/__init__.py", "./pkg/build/i.py", "./pkg/sub/d.py",
    ]  # fmt: skip


def test_what_is_skipped_inside_can_be_named(tree: Path) -> None:
    assert found(tree, paths=("venv", ".hidden/e.py")) == ["venv/f.py", ".hidden/e.py"]


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("sub", {"./pkg/sub/d.py"}),
        ("b.py", {"./pkg/b.py"}),
        ("pkg/b*", {"./pkg/b.py", "./pkg/build/__init__.py", "./pkg/build/i.py"}),
        ("**/d.py", {"./pkg/sub/d.py"}),
        ("pkg/sub/", {"./pkg/sub/d.py"}),
        ("d", set()),
    ],
)
def test_exclude(tree: Path, pattern: str, gone: set[str]) -> None:
    assert set(found(tree)) - set(found(tree, pattern)) == gone


def test_a_named_file_is_linted_though_excluded_unless_asked_otherwise(tree: Path) -> None:
    excluder = Excluder(("a.py",), tree)
    assert discover_files(["a.py"], excluder).files
    assert not discover_files(["a.py"], excluder, exclude_named=True).files


def test_each_file_is_linted_once(tree: Path) -> None:
    assert len(found(tree, paths=("pkg", "pkg/b.py", str(tree / "pkg")))) == 5


@pytest.mark.parametrize(
    ("path", "words"),
    [("missing", "no such file or directory"), ("empty", "no Python file"), ("x\0y", "no such file")],
)
def test_a_path_with_nothing_in_it_is_an_error_and_the_others_are_found(
    tree: Path, path: str, words: str
) -> None:
    (tree / "empty").mkdir()
    result = discover_files([path, "a.py"], Excluder((), tree))
    (finding,) = result.findings
    assert (finding.rule, finding.severity, finding.path) == ("TPU002", Severity.ERROR, path)
    assert words in finding.reason
    assert list(result.files.values()) == ["a.py"]


def test_a_directory_that_cannot_be_read_is_an_error(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    result = discover_files(["pkg"], Excluder((), tree))
    (finding,) = result.findings
    assert (finding.path, finding.severity) == ("pkg/sub", Severity.ERROR)
    assert "Permission denied" in finding.reason
    assert "pkg/b.py" in result.files.values()


def test_notebooks_are_files_too(tree: Path) -> None:
    write(tree, "nb/n.ipynb")
    write(tree, "nb/.ipynb_checkpoints/n.ipynb")
    for path in ("nb", "nb/n.ipynb"):
        result = discover_files([path], Excluder((), tree))
        assert (list(result.files.values()), result.findings) == (["nb/n.ipynb"], [])


def test_symbolic_links(tree: Path) -> None:
    (tree / "pkg/loop").symlink_to(tree / "pkg")
    (tree / "pkg/self.py").symlink_to("self.py")
    (tree / "pkg/again").symlink_to(tree / "pkg/sub")
    write(tree, "outside/o.py")
    (tree / "pkg/out").symlink_to(tree / "outside")
    result = discover_files(["pkg"], Excluder((), tree))
    (loop,) = result.findings
    assert (loop.path, loop.severity) == ("pkg/loop", Severity.WARNING)
    names = list(result.files.values())
    assert "pkg/out/o.py" in names, "a link to elsewhere is followed"
    assert "pkg/again/d.py" not in names, "what is below the path anyway is found there"
    assert "pkg/self.py" in names, "reading it says what is wrong"


def test_a_directory_that_may_not_be_read_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "open.py").write_text("x = 1\n")
    path_stat, scandir = Path.stat, os.scandir

    def refuse(path: object) -> None:
        if "shut" in Path(str(path)).parts:
            raise PermissionError(13, "Permission denied", str(path))

    def checked_stat(self: Path, **options: bool) -> os.stat_result:
        refuse(self.parent)
        return path_stat(self, **options)

    def checked_scandir(path: Path) -> object:
        refuse(path)
        return scandir(path)

    monkeypatch.setattr(Path, "stat", checked_stat)
    monkeypatch.setattr(os, "scandir", checked_scandir)
    report = lint_paths([tmp_path], run=Run(cache=False))
    assert report.files == 1
    assert [finding.rule for finding in report.findings] == ["TPU002"]


def test_the_mode_stays_and_a_link_stays_a_link(tmp_path: Path) -> None:
    file = tmp_path / "real.py"
    file.write_bytes(b"old")
    file.chmod(0o750)
    (tmp_path / "link.py").symlink_to("real.py")
    write_atomically(tmp_path / "link.py", b"new\r\n")
    assert (tmp_path / "link.py").is_symlink()
    assert file.read_bytes() == b"new\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o750


def test_a_new_file_gets_the_usual_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new.json", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o640


@pytest.mark.parametrize("step", ["open", "fdopen", "fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_at_any_step_the_old_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    file = tmp_path / "m.py"
    file.write_bytes(b"old")

    def interrupt(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, interrupt)
        with pytest.raises(error):
            write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["m.py"]


def test_a_read_only_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.py"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may be allowed everything
    with pytest.raises(PermissionError):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_bytes(b"old")
    os.chown(file, 12345, 23456)
    file.chmod(0o2750)
    write_atomically(file, b"new")
    status = file.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (12345, 23456, 0o2750)


@pytest.mark.skipif(not hasattr(os, "chown"), reason="no owners here")
def test_an_owner_that_cannot_be_kept_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        # What Linux says in a container of an owner whom the container does not know.
        raise OSError(22, "Invalid argument")

    file = tmp_path / "m.py"
    file.write_bytes(b"old")
    file.chmod(0o640)
    monkeypatch.setattr(os, "chown", refuse)
    write_atomically(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o7777) == (b"new", 0o640)
