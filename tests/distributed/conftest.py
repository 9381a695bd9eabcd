"""Two processes with four virtual CPU devices each, as two hosts would be."""

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What a script finds: where the processes meet, how many they are, which one this is; its arguments; and how to answer.
PRELUDE = """
import json, os, sys
import tpuport
meeting = (os.environ["TEST_COORDINATOR"], int(os.environ["TEST_PROCESSES"]), int(os.environ["TEST_PROCESS"]))
arguments = sys.argv[1:]

def answer(value):
    with open(os.environ["TEST_ANSWER"], "w") as file:
        json.dump(value, file)
"""
JOIN = "tpuport.initialize_distributed(*meeting, **{options})\n"


@dataclasses.dataclass(frozen=True)
class Finished:
    """A process that has ended: its code (negative for a signal), what it wrote, and what it gave to answer()."""

    returncode: int
    stdout: str
    stderr: str
    answer: Any


class Processes:
    """The processes of one run, each with files for its output: a full pipe would stop it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[subprocess.Popen] = []

    def start(self, script: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        """Start one more, in a session of its own, so that its children can be ended with it."""
        number = len(self.running)
        environment = {
            **environment,
            "TEST_PROCESS": str(number),
            "TEST_ANSWER": str(self._file(number, "answer")),
        }
        command = [sys.executable, "-c", script, *arguments]
        with self._file(number, "out").open("w") as out, self._file(number, "err").open("w") as err:
            process = subprocess.Popen(
                command, cwd=self.directory.parent, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        self.running.append(process)

    def wait(self, timeout: float) -> list[Finished]:
        """Wait for all. When one fails or the time is over, the others would wait for ever, and are ended."""
        deadline = time.monotonic() + timeout
        while any(process.poll() is None for process in self.running):
            if time.monotonic() > deadline or any(process.poll() for process in self.running):
                time.sleep(1)  # the others may be about to end with a reason of their own
                self.end()
            time.sleep(0.02)
        return [self._finished(number, process.returncode) for number, process in enumerate(self.running)]

    def end(self) -> None:
        """Kill what still runs, children included."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _finished(self, number: int, code: int) -> Finished:
        answer = self._file(number, "answer")
        value = json.loads(answer.read_text()) if answer.exists() else None
        return Finished(
            code, self._file(number, "out").read_text(), self._file(number, "err").read_text(), value
        )

    def _file(self, number: int, kind: str) -> Path:
        return self.directory / f"{number}.{kind}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def start_processes(tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    """`start_processes(script, *arguments, join=True, **environment)` starts a script in two processes.

    They run in tmp_path and have joined one jax system when the script starts, unless join is False; join may be
    options of initialize_distributed. The script finds `tpuport`, `arguments`, `meeting` and `answer(value)`.
    """
    started: list[Processes] = []

    def start(
        script: str, *arguments: object, join: bool | Mapping[str, Any] = True, **environment: str
    ) -> Processes:
        directory = tmp_path / f"run-{len(started)}"
        directory.mkdir()
        started.append(processes := Processes(directory))
        common = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": re.sub(r"device_count=\d+", "device_count=4", os.environ["XLA_FLAGS"]),
            "PYTHONPATH": str(ROOT),
            "TEST_COORDINATOR": f"127.0.0.1:{_free_port()}",
            "TEST_PROCESSES": "2",
        }
        options = dict(join) if isinstance(join, Mapping) else {}
        begin = PRELUDE + (JOIN.format(options=options) if join else "")
        for _ in range(2):
            processes.start(begin + script, [str(a) for a in arguments], common | environment)
        return processes

    yield start
    for processes in started:
        processes.end()


@pytest.fixture
def run_processes(start_processes: Callable[..., Processes]) -> Callable[..., list[Finished]]:
    """As start_processes, until both have ended. What hangs is killed after timeout seconds (code -9)."""

    def run(script: str, *arguments: object, timeout: float = 180, **options: Any) -> list[Finished]:
        return start_processes(script, *arguments, **options).wait(timeout)

    return run


@pytest.fixture
def run_two(run_processes: Callable[..., list[Finished]]) -> Callable[..., list[Any]]:
    """As run_processes, for scripts that must succeed: the answers of the two, in order."""

    def run(script: str, *arguments: object, **options: Any) -> list[Any]:
        finished = run_processes(script, *arguments, **options)
        failed = [
            f"process {i}: {f.returncode}\n{f.stdout}{f.stderr}"
            for i, f in enumerate(finished)
            if f.returncode
        ]
        assert not failed, "\n".join(failed)
        return [process.answer for process in finished]

    return run
