"""Lets libtpu write the schedules of all programs that this process compiles, into a
directory of its own.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tpuport.base.temporary import temporary_environment
from tpuport.hardware.schedules.schedule_dump import (
    KernelSchedule,
    dump_flags,
    read_schedules,
)

_FLAGS: Final = "LIBTPU_INIT_ARGS"
_directory: tempfile.TemporaryDirectory[str] | None = None


@contextlib.contextmanager
def recording_flags() -> Iterator[None]:
    """Let libtpu write schedules if it is loaded inside: it reads its flags once, when
    it is loaded.

    A user who has it write its dumps elsewhere keeps them, and then nothing is
    recorded. The environment is as before afterwards, so that child processes do not
    write into this process's directory.
    """
    global _directory
    flags = os.environ.get(_FLAGS, "")
    if _directory is not None or "xla_jf_dump" in flags:
        yield
        return
    # Removed when the process ends.
    _directory = tempfile.TemporaryDirectory(
        prefix="tpuport-schedules-", ignore_cleanup_errors=True
    )
    added = dump_flags(_directory.name)
    with temporary_environment(_FLAGS, f"{flags} {added}".strip()):
        yield


@contextlib.contextmanager
def record() -> Iterator[dict[str, KernelSchedule]]:
    """The schedules of the program that is compiled inside, once it is; empty if libtpu
    was not told to write any.
    """
    schedules: dict[str, KernelSchedule] = {}
    if _directory is None:
        yield schedules
        return
    _empty(Path(_directory.name))
    try:
        yield schedules
        schedules.update(read_schedules(_directory.name))
    finally:
        _empty(Path(_directory.name))


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        if file.is_dir():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)
