"""Several processes: in a program of its own each, since forking and the rest of the tests do not go together."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest

from tpuport.base.temporary import garbage_collection_off
from tpuport.lint import workers

PROGRAM = """
import os, signal, sys, time
from tpuport.lint import workers
from tpuport.lint.configuration import Settings

# Whoever runs the tests in the background may have made interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Analyser:
    def analyse(self, source):
        if "DIE" in source.text:
            os._exit(9)
        if "KILL" in source.text:
            os.kill(os.getpid(), 9)
        if "SLEEP" in source.text:
            open(str(source.path) + ".started", "w").close()
            time.sleep(60)
        return type("Outcome", (), dict(findings=(), dependencies=(), entry_points=1, traced=(), entries=()))

workers.make_analyser = lambda settings: Analyser()
results = []
try:
    workers.analyse_files(sys.argv[2:], Settings(jobs=int(sys.argv[1])), results.append)
except KeyboardInterrupt:
    sys.exit(130)
for result in sorted(results, key=lambda result: result.path):
    print(os.path.basename(result.path), result.entry_points, *(finding.reason for finding in result.findings))
"""


def program(jobs: int, files: list[Path]) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(PROGRAM), str(jobs), *map(str, files)]


def write(root: Path, **texts: str) -> list[Path]:
    files = []
    for name, text in texts.items():
        file = root / name / "m.py"  # a directory each, so that each is a chunk
        file.parent.mkdir()
        files.append(file.with_name(f"{name}.py"))
        files[-1].write_text(text)
    return files


def run(jobs: int, files: list[Path]) -> list[str]:
    done = subprocess.run(program(jobs, files), capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_every_file_is_analysed(tmp_path: Path, jobs: int) -> None:
    files = write(tmp_path, **{f"f{number}": "x = 1\n" for number in range(9)})
    assert run(jobs, files) == [f"f{number}.py 1" for number in range(9)]


def test_a_process_that_dies_costs_one_file(tmp_path: Path) -> None:
    files = write(tmp_path, a="DIE\n", b="x\n", c="KILL\n", d="x\n")
    after = [tmp_path / "a" / "after.py", tmp_path / "a" / "after2.py"]
    for file in after:
        file.write_text("x\n")
    lines = run(2, [*files, *after])
    assert "a.py 0 the process that analysed this file ended with exit code 9" in lines
    assert "c.py 0 the process that analysed this file ended with signal 9" in lines
    assert {"b.py 1", "d.py 1", "after.py 1", "after2.py 1"} < set(lines)


def test_interrupted_it_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    files = write(tmp_path, a="SLEEP\n", b="SLEEP\n", c="x\n")
    process = subprocess.Popen(program(2, files), stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 120
    while sum(1 for file in files if Path(f"{file}.started").exists()) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, b"")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_biggest_chunk_comes_first_and_directories_stay_together() -> None:
    sizes = {"/a/x.py": 10, "/b/y.py": 500_000, "/a/z.py": 20, "/c/1.py": 200_000, "/c/2.py": 200_000}
    assert workers._divide_into_chunks(sizes) == [
        ["/b/y.py"],
        ["/c/1.py"],
        ["/c/2.py"],
        ["/a/z.py", "/a/x.py"],
    ]


def test_where_forking_is_not_safe_there_is_one_process_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", object())
    assert workers._process_start_method(explicit=False) is None
    assert workers._process_start_method(explicit=True) == "spawn"


def test_the_thread_that_waits_for_ctrl_c_leaves_forking_safe() -> None:
    # The command line starts it before the analysis.
    program = (
        "from tpuport.cli import interrupts\n"
        "from tpuport.lint import workers\n"
        "interrupts.install(lambda: None)\n"
        "print(workers._process_start_method(explicit=False))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "fork\n"


def test_any_other_thread_does_not() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert workers._process_start_method(explicit=False) is None
    finally:
        stop.set()
        thread.join()


class Node:
    """Something that refers to itself, as modules do."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_when_the_objects_have_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_FILES_PER_COUNT", 2)
    with garbage_collection_off():
        collector = workers._Collector()
        reference = weakref.ref(Node())
        try:
            # There are not so many objects yet, and they are not counted after each file.
            for most_objects in (sys.maxsize, sys.maxsize, 0):
                collector.most_objects = most_objects
                collector.note_file()
                assert reference() is not None
            collector.note_file()
            assert reference() is None
            assert collector.most_objects == max(
                workers._OBJECTS_WITHOUT_COLLECTION, 2 * gc.get_freeze_count()
            )
        finally:
            gc.unfreeze()


def test_a_large_run_in_one_process_is_not_the_caller_s(tmp_path: Path) -> None:
    files = write(tmp_path, a="DIE\n" + "# a comment\n" * (workers._WORTH_PROCESSES // 10), b="x = 1\n")
    assert run(1, files) == ["a.py 0 the process that analysed this file ended with exit code 9", "b.py 1"]
