"""Worker processes whose items crash, hang or need too much memory."""

import os
from collections.abc import Iterator

import pytest

from benchmarks import workers

TASKS = """
import os, time

def work(item):
    yield {"item": item, "process": os.getpid(), "step": 1}
    if item == "crash":
        os.abort()
    if item == "raise":
        raise ValueError("the reason")
    if item == "hang":
        time.sleep(600)
    if item == "grow":
        bytearray(1 << 32)
    print("noise")
    yield {"item": item, "process": os.getpid(), "step": 2}
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[workers.Work]:
    directory = tmp_path_factory.mktemp("tasks")
    (directory / "worker_tasks.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        import worker_tasks

        yield worker_tasks.work


def test_an_item_that_ends_its_process_costs_itself_alone(work: workers.Work, capfd) -> None:
    items = ["first", "crash", "second", "raise", "grow", "third"]
    outcomes = list(workers.run(work, items, seconds=60, batch=10, memory=1 << 31))
    assert [outcome.item for outcome in outcomes] == items
    steps = {outcome.item: outcome.record["step"] for outcome in outcomes}
    assert steps == {"first": 2, "crash": 1, "second": 2, "raise": 1, "grow": 1, "third": 2}
    reasons = {outcome.item: outcome.failure for outcome in outcomes if outcome.failure is not None}
    assert reasons == {
        "crash": "the process ended with code -6",
        "raise": "the process ended with code 1: ValueError: the reason",
        "grow": "the process ended with code 1: MemoryError",
    }
    processes = [outcome.record["process"] for outcome in outcomes]
    assert len(set(processes)) == 4, "the next item after one that ended its process has a new one"
    assert os.getpid() not in processes
    assert "noise" not in capfd.readouterr().out


def test_an_item_that_takes_too_long_is_ended(work: workers.Work) -> None:
    hanging, following = workers.run(work, ["hang", "after"], seconds=2)
    assert hanging.failure == "took longer than 2 s"
    assert hanging.record["step"] == 1
    assert 2 <= hanging.seconds < 60
    with pytest.raises(ProcessLookupError):
        os.kill(hanging.record["process"], 0)
    assert following.failure is None
