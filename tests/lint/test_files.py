"""Writing files whole."""

import os
import stat
from pathlib import Path

import pytest

from tpuport.lint.files import write_atomically


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
