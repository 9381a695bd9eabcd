"""A process for each item of a long list: one that crashes, hangs or needs too much memory costs that item alone."""

import dataclasses
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# For the imports of the module that `work` is in.
_START_SECONDS = 300.0
# What a worker sends beside records.
_STARTED = "started"
_ITEM_DONE = "item done"

Work = Callable[[Any], Iterable[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of an item.

    Attributes:
        item: as it was passed.
        record: the last one that it gave; None if there was none.
        failure: why it was not finished: the time limit, or how the process ended; None if it was.
        seconds: how long it took.
    """

    item: Any
    record: dict[str, Any] | None
    failure: str | None
    seconds: float


def run(
    work: Work, items: Iterable[Any], *, seconds: float, batch: int = 1, memory: int | None = None
) -> Iterator[Outcome]:  # fmt: skip
    """Run `work` for each item in worker processes; what it prints is dropped.

    Args:
        work: a function of a module, or a `functools.partial` of one. It yields records, each of which replaces the
            one before, so that an item which ends its process has what it came to.
        items: values that can be pickled.
        seconds: the limit for one item.
        batch: items to a process, which then keeps its imports and its compiled programs.
        memory: bytes of data that a process may have.

    Yields:
        An outcome for each item, in order.
    """
    # Not forked: a process forked from one that has used jax may wait for its threads forever.
    context = multiprocessing.get_context("spawn")
    pending = list(items)
    while pending:
        finished = 0
        for outcome in _run_process(context, work, pending[:batch], seconds, memory):
            finished += 1
            yield outcome
        pending = pending[finished:]


def _run_process(
    context: Any, work: Work, items: list[Any], seconds: float, memory: int | None
) -> Iterator[Outcome]:
    """Outcomes of items in one process: of all, or up to the first that is not finished."""
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as directory:
        errors = Path(directory) / "errors"
        process = context.Process(target=_serve, args=(work, items, memory, errors, sender))
        process.start()
        # The worker has the only end that writes, so that its death is the end of the file here.
        sender.close()
        try:
            _, failure = _receive(receiver, _STARTED, _START_SECONDS)
            for item in items:
                started = time.monotonic()
                record = None
                if failure is None:
                    record, failure = _receive(receiver, _ITEM_DONE, seconds)
                if failure == "":
                    process.join()
                    failure = _describe_end(process.exitcode, errors)
                yield Outcome(item, record, failure, time.monotonic() - started)
                if failure is not None:
                    return
        finally:
            process.kill()
            process.join()


def _receive(receiver: Connection, end: str, seconds: float) -> tuple[dict[str, Any] | None, str | None]:
    """The last record before the message `end`, and why that did not come: "" if the process is gone."""
    record = None
    deadline = time.monotonic() + seconds
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            message = receiver.recv()
        except EOFError:
            return record, ""
        if message == end:
            return record, None
        record = message
    return record, f"took longer than {seconds:g} s"


def _describe_end(exit_code: int | None, errors: Path) -> str:
    lines = [""]
    if errors.exists():
        lines += errors.read_text(errors="replace").strip().splitlines()
    return f"the process ended with code {exit_code}: {lines[-1][:200]}".removesuffix(": ")


def _serve(work: Work, items: list[Any], memory: int | None, errors: Path, sender: Connection) -> None:
    """The worker's part."""
    # The files themselves, not only Python's streams: compilers write there too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    sender.send(_STARTED)
    for item in items:
        for record in work(item):
            sender.send(record)
        sender.send(_ITEM_DONE)
    sender.close()
