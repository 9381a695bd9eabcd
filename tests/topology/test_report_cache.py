"""Reports kept by program."""

from pathlib import Path

import pytest

from tpuport.topology import report_cache

VALUE = {"report": {"fits": True, "name": "é"}, "seconds": {"compile": 1.5}}


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TPUPORT_COMPILATION_CACHE", "")
    return tmp_path


def test_what_was_kept_comes_back_under_its_key_only(home: Path) -> None:
    assert report_cache.read("one") is None
    report_cache.write("one", VALUE)
    assert report_cache.read("one") == VALUE
    assert report_cache.read("two") is None
    report_cache.write("one", {"report": {}})
    assert report_cache.read("one") == {"report": {}}
    assert report_cache.directory() == home / "tpuport" / "reports"


def test_nothing_is_left_beside_the_entry(home: Path) -> None:
    report_cache.write("one", VALUE)
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
    report_cache.write("one", VALUE)
    [file] = (home / "tpuport" / "reports").iterdir()
    file.write_bytes(damage)
    assert report_cache.read("one") is None
    report_cache.write("one", VALUE)
    assert report_cache.read("one") == VALUE


def test_it_can_be_off_or_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TPUPORT_COMPILATION_CACHE", "off")
    report_cache.write("one", VALUE)
    assert report_cache.read("one") is None
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TPUPORT_COMPILATION_CACHE", str(tmp_path / "there"))
    report_cache.write("one", VALUE)
    assert report_cache.read("one") == VALUE
    assert (tmp_path / "there" / "reports").is_dir()


def test_a_directory_that_cannot_be_written_keeps_nothing(home: Path) -> None:
    (home / "tpuport").write_text("a file in the way")
    report_cache.write("one", VALUE)
    assert report_cache.read("one") is None
