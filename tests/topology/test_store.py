"""Reports kept by program."""

from pathlib import Path

import pytest

from tpuport.topology import store

VALUE = {"report": {"fits": True, "name": "é"}, "seconds": {"compile": 1.5}}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TPUPORT_COMPILATION_CACHE", "")
    return tmp_path


def test_what_was_kept_comes_back_under_its_key_only(home: Path) -> None:
    assert store.read("one") is None
    store.write("one", VALUE)
    assert store.read("one") == VALUE
    assert store.read("two") is None
    store.write("one", {"report": {}})
    assert store.read("one") == {"report": {}}
    assert store.directory() == home / "tpuport" / "reports"


def test_nothing_is_left_beside_the_entry(home: Path) -> None:
    store.write("one", VALUE)
    [file] = (home / "tpuport" / "reports").iterdir()
    assert file.suffix == ".json"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"key": "one"}',
        b'{"key": "one", "value": 3}',
        b'{"key": "other", "value": {}}',
    ],
)
def test_a_damaged_entry_is_no_entry(home: Path, damage: bytes) -> None:
    store.write("one", VALUE)
    [file] = (home / "tpuport" / "reports").iterdir()
    file.write_bytes(damage)
    assert store.read("one") is None
    store.write("one", VALUE)
    assert store.read("one") == VALUE


def test_it_can_be_off_or_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TPUPORT_COMPILATION_CACHE", "off")
    store.write("one", VALUE)
    assert store.read("one") is None
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TPUPORT_COMPILATION_CACHE", str(tmp_path / "there"))
    store.write("one", VALUE)
    assert store.read("one") == VALUE
    assert (tmp_path / "there" / "reports").is_dir()


def test_a_directory_that_cannot_be_written_keeps_nothing(home: Path) -> None:
    (home / "tpuport").write_text("a file in the way")
    store.write("one", VALUE)
    assert store.read("one") is None
