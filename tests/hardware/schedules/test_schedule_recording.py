"""The schedules that libtpu writes into a directory, and the flags that let it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpuport.hardware.schedules import read_schedules, record, recording_flags, schedule_recording

BUNDLE = "   0x1   :  { %v1_v1 = vadd.f32 %v2_v2, %v3_v3 }\n"


def write(directory: Path, name: str, bundles: int) -> None:
    (directory / name).write_text(BUNDLE * bundles)


def test_each_kernel_has_the_bundles_of_its_listing(tmp_path: Path) -> None:
    write(tmp_path, "1764083-fusion.3-71-final_bundles.txt", 3)
    write(tmp_path, "1764083-copy-start.1-9-final_bundles.txt", 5)
    write(tmp_path, "1764083-TLP-71-final_bundles.txt", 7)
    write(tmp_path, "1764083-<late-initialization>-1-final_bundles.txt", 7)
    write(tmp_path, "1764083-fusion.3-70-schedule-analysis_final_bundles.txt", 7)
    write(tmp_path, "1764083-fusion.4-12-packed_bundles.txt", 7)
    schedules = read_schedules(tmp_path)
    assert {name: (schedule.cycles, schedule.exact) for name, schedule in schedules.items()} == {
        "fusion.3": (3, True),
        "copy-start.1": (5, True),
    }


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a process in which nothing was compiled yet, whatever other tests did."""
    monkeypatch.setattr(schedule_recording, "_directory", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    if schedule_recording._directory is not None:
        schedule_recording._directory.cleanup()


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize("flags", [None, "--xla_tpu_something=1"])
def test_flags_are_there_while_libtpu_is_loaded_only(
    monkeypatch: pytest.MonkeyPatch, flags: str | None
) -> None:
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    if flags is not None:
        monkeypatch.setenv("LIBTPU_INIT_ARGS", flags)
    with recording_flags():
        inside = os.environ["LIBTPU_INIT_ARGS"]
        assert inside.startswith(flags or "--xla_jf_dump_to=")
        assert "--xla_jf_dump_to=" in inside
    assert os.environ.get("LIBTPU_INIT_ARGS") == flags


@pytest.mark.usefixtures("directory")
def test_a_program_has_the_schedules_that_were_written_for_it() -> None:
    with recording_flags():
        pass
    assert schedule_recording._directory is not None
    directory = Path(schedule_recording._directory.name)
    write(directory, "1-fusion.9-1-final_bundles.txt", 9)
    with record() as schedules:
        write(directory, "2-fusion.1-1-final_bundles.txt", 4)
        assert schedules == {}
    assert {name: schedule.cycles for name, schedule in schedules.items()} == {"fusion.1": 4}
    # The next program does not see them.
    with record() as schedules:
        pass
    assert schedules == {}


@pytest.mark.usefixtures("directory")
def test_who_has_dumps_written_elsewhere_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_jf_dump_to=/elsewhere")
    with recording_flags():
        assert os.environ["LIBTPU_INIT_ARGS"] == "--xla_jf_dump_to=/elsewhere"
    with record() as schedules:
        pass
    assert schedules == {}
