"""Changes of files end the wait; files that are not linted do not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tpuport.cli import lint
from tpuport.cli.arguments import UsageError
from tpuport.lint import watching


class StillWaiting(Exception):
    pass


def changes_then_gives_up(change: Callable[[], object]) -> Callable[[float], None]:
    """A sleep in which a change happens; the second one ends the test."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        if slept:
            raise StillWaiting
        slept.append(seconds)
        change()

    return sleep


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("x = 1\n")
    return tmp_path / "model.py"


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("x = 1 + 1\n"),
        lambda file: file.unlink(),
        lambda file: file.with_name("new.py").write_text(""),
    ],
)
def test_a_change_ends_the_wait(file: Path, change: Callable[[Path], object]) -> None:
    stamps = watching.stamps_of([file.parent])
    watching.wait_for_change([file.parent], stamps, changes_then_gives_up(lambda: change(file)))


def test_other_files_do_not_end_it(file: Path) -> None:
    stamps = watching.stamps_of([file.parent])
    note = file.with_name("notes.txt")
    with pytest.raises(StillWaiting):
        watching.wait_for_change([file.parent], stamps, changes_then_gives_up(lambda: note.write_text("")))


def test_a_change_during_the_run_is_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def run_once(options: object) -> int:
        runs.append(file.read_text())
        if len(runs) == 2:
            raise KeyboardInterrupt
        file.write_text("x = 2 + 2\n")
        return 0

    monkeypatch.setattr(lint, "_run_once", run_once)
    with pytest.raises(KeyboardInterrupt):
        lint.run(lint.parser().parse_args(["--watch", str(file)]))
    assert runs == ["x = 1\n", "x = 2 + 2\n"]


@pytest.mark.parametrize("option", ["--fix", "--unsafe-fixes", "--add-ignore"])
def test_a_run_that_writes_cannot_be_watched(file: Path, option: str) -> None:
    with pytest.raises(UsageError):
        lint.run(lint.parser().parse_args(["--watch", option, str(file)]))
