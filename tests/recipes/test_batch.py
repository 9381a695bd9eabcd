"""The batch recipe: killed at random moments and started again, its results are those of an uninterrupted run."""

import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipes.batch import __main__ as recipe
from recipes.batch.work import Job, fingerprint, read_rows
from tpuport import PortError

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "recipes/llama/checkpoint"
# The work of the recipe without a model: a text is the prompt in capitals.
WORK = """
import sys, time
from pathlib import Path
from recipes.batch.work import Job, read_rows

prompts, output, process = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
job = Job(read_rows(prompts), output, 3, {"max_new_tokens": 1})
job.open()
with job.claimed(process):
    for chunk in job.pending(process, 2):
        time.sleep(0.02)
        job.write(chunk, [row["prompt"].upper() for row in job.rows_of(chunk)])
"""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of a hundred prompts, of several lengths and alphabets."""
    path = tmp_path / "prompts.jsonl"
    texts = ["To port a model", "The harbour", "Tom counted è 漢", "On Wednesday the Blue Heron"]
    rows = [{"id": number, "prompt": f"{texts[number % 4]} {number}"} for number in range(100)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a Python process, and kills it at the end of the test."""
    started = []
    # The recipe itself asks for devices.
    env = os.environ | {"XLA_FLAGS": re.sub(r"\S+device_count=\d+", "", os.environ["XLA_FLAGS"])}

    def run(*words: object) -> subprocess.Popen:
        command = [sys.executable, *map(str, words)]
        output = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def _interrupt(
    start_all: Callable[[], list[subprocess.Popen]], output: Path, kills: int, longest: float
) -> int:
    """Start processes and kill one or all at random moments; how many kills met one that ran."""
    chance, met, finished = random.Random(7), 0, {}
    for _ in range(kills):
        processes = start_all()
        time.sleep(chance.uniform(0, longest))
        for process in processes[chance.randrange(len(processes)) :]:
            met += process.poll() is None
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.kill()
            process.wait()
        # What is done is never touched again.
        now = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in output.glob("part-*")}
        assert {name: now.get(name) for name in finished} == finished
        finished = now
    return met


def _finish(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors


def test_killed_at_random_moments(prompts: Path, tmp_path: Path, start: Callable) -> None:
    output = tmp_path / "results"

    def start_both() -> list[subprocess.Popen]:
        return [start("-c", WORK, prompts, output, process) for process in range(2)]

    assert _interrupt(start_both, output, kills=8, longest=0.6) > 4
    _finish(start_both())
    job = Job(read_rows(prompts), output, 3, {"max_new_tokens": 1})
    results = [json.loads(line) for line in job.collect().read_text(encoding="utf-8").splitlines()]
    assert results == [row | {"text": row["prompt"].upper()} for row in read_rows(prompts)]


def test_a_result_is_there_as_a_whole_or_not(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(read_rows(prompts)[:3], tmp_path / "results", 2, {})
    job.open()
    texts = ["one", "two"]
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            # pathlib's replace calls os.replace.
            patch.setattr(os, function, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                job.write(0, texts)
        assert job.pending() == [0, 1]
    job.write(0, texts)
    assert job.pending() == [1]
    with pytest.raises(PortError, match="1 of 2 chunks are not done, the first is 1"):
        job.collect()
    job.write(1, ["three"])
    assert [json.loads(line)["text"] for line in job.collect().read_text().splitlines()] == [*texts, "three"]


def test_each_chunk_has_one_process(prompts: Path, tmp_path: Path) -> None:
    job = Job(read_rows(prompts), tmp_path, 7, {})
    shares = [job.pending(process, 4) for process in range(4)]
    assert sorted(itertools.chain(*shares)) == list(job.chunks)
    assert sum(len(job.rows_of(chunk)) for chunk in job.chunks) == 100
    again = pytest.raises(PortError, match="process 1 of this job is running already")
    with job.claimed(1), job.claimed(2), again, job.claimed(1):
        pass
    with job.claimed(1):
        pass


def test_a_folder_takes_the_results_of_one_job(prompts: Path, tmp_path: Path) -> None:
    rows, output = read_rows(prompts), tmp_path / "results"
    Job(rows, output, 4, {"dtype": "float32"}).open()
    Job(rows, output, 4, {"dtype": "float32"}).open()
    others = {
        "dtype": Job(rows, output, 4, {"dtype": "bfloat16"}),
        "chunk_size": Job(rows, output, 5, {"dtype": "float32"}),
        "prompts": Job(rows[1:], output, 4, {"dtype": "float32"}),
    }
    for name, job in others.items():
        with pytest.raises(PortError, match=f"results of another job, with {name}="):
            job.open()
    assert sorted(path.name for path in output.iterdir()) == ["job.json"]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "there are no prompts"),
        (b'{"prompt": "a"}\n\n', "prompts.jsonl:2"),
        (b'{"prompt": ""}\n', "this line has no prompt"),
        (b'["prompt"]\n', "this line has no prompt"),
        (b"\xff\n", "the prompts cannot be read"),
    ],
)
def test_bad_prompts(content: bytes, part: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(PortError) as raised:
        read_rows(path)
    assert part in str(raised.value)


def test_what_cannot_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needed = ["--prompts", "p", "--output", "o"]
    for words, part in (
        (["--process", "2", "--processes", "2"], "the last of 2 is 1"),
        (["--coordinator", "localhost:1"], "with --together alone"),
        (["--chunk", "0"], "0 is less than 1"),
    ):
        with pytest.raises(SystemExit):
            recipe.parse_arguments([*needed, *words])
        assert part in capsys.readouterr().err
    arguments = recipe.parse_arguments([*needed, "--checkpoint", str(tmp_path / "nowhere")])
    with pytest.raises(PortError, match="no such directory"):
        recipe.plan_job(arguments)
    assert fingerprint(CHECKPOINT) == fingerprint(CHECKPOINT)


def _recipe(prompts: Path, output: Path, *words: object) -> list[object]:
    options = ("--chunk", 20, "--max-new-tokens", 12, "--do-sample")
    return ["-m", "recipes.batch", "--prompts", prompts, "--output", output, *options, *words]


@pytest.mark.slow  # the test above has the same files, without the time that a model takes to load
@pytest.mark.parametrize("together", [False, True])
def test_the_recipe_continues_where_it_was_killed(
    together: bool, prompts: Path, tmp_path: Path, start: Callable
) -> None:
    whole, output = tmp_path / "whole", tmp_path / "results"
    _finish([start(*_recipe(prompts, whole))])
    _finish([start(*_recipe(prompts, whole, "--collect"))])

    def start_both() -> list[subprocess.Popen]:
        meeting = []
        if together:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                meeting = ["--together", "--coordinator", f"127.0.0.1:{free.getsockname()[1]}"]
        words = [*meeting, "--cpu-devices", 1, "--processes", 2, "--process"]
        return [start(*_recipe(prompts, output, *words, process)) for process in range(2)]

    assert _interrupt(start_both, output, kills=4, longest=40) > 1
    _finish(start_both())
    _finish([start(*_recipe(prompts, output, "--collect"))])
    assert (output / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()
