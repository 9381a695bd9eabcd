"""Many files over several processes. A process that dies costs the file it was at, and no other."""

import collections
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from tpuport.lint import source, work
from tpuport.lint.settings import Settings
from tpuport.lint.work import FileResult

# Below so many bytes of source, starting processes costs more than it saves.
_WORTH_PROCESSES: Final = 200_000
# Files that one process gets at once: those of a directory share imports, which are then analysed once.
_CHUNK_BYTES: Final = 300_000

Done = Callable[[FileResult], None]


def run(paths: Sequence[str], settings: Settings, done: Done) -> None:
    """Analyse files, in no particular order, telling of each one as it is done.

    Args:
        paths: absolute.
        settings: `settings.jobs` processes; 0 for one a core.
        done: gets the results, in this process.
    """
    sizes = {path: _size(path) for path in paths}
    jobs = settings.jobs or _cores()
    chunks = _chunks(sizes)
    if min(jobs, len(chunks)) < 2 or (not settings.jobs and sum(sizes.values()) < _WORTH_PROCESSES):
        _alone(paths, settings, done)
        return
    method = _method(explicit=settings.jobs > 1)
    if method is None:
        _alone(paths, settings, done)
    else:
        _Pool(chunks, settings, done, method).run(min(jobs, len(chunks)))


def _alone(paths: Sequence[str], settings: Settings, done: Done) -> None:
    before = sys.getrecursionlimit()
    try:
        analyser = work.make_analyser(settings)  # raises the limit: what it follows may be deep
        for path in paths:
            done(work.analyse_file(analyser, path))
    finally:
        sys.setrecursionlimit(before)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _method(*, explicit: bool) -> str | None:
    """How processes are started: forking is quick, and safe while there is one thread."""
    if hasattr(os, "fork") and threading.active_count() == 1 and not {"jax", "torch"} & sys.modules.keys():
        return "fork"
    return "spawn" if explicit else None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a name is at hand
    except (OSError, ValueError):
        return 0


def _chunks(sizes: dict[str, int]) -> list[list[str]]:
    """The files in chunks of one directory, the biggest chunk first, so that all processes end at about one time."""
    chunks: list[tuple[int, list[str]]] = []
    by_directory: dict[str, list[str]] = collections.defaultdict(list)
    for path in sizes:
        by_directory[os.path.dirname(path)].append(path)  # noqa: PTH120
    for files in by_directory.values():
        total, chunk = 0, list[str]()
        for path in sorted(files, key=sizes.__getitem__, reverse=True):
            if chunk and total + sizes[path] > _CHUNK_BYTES:
                chunks.append((total, chunk))
                total, chunk = 0, []
            chunk.append(path)
            total += sizes[path]
        chunks.append((total, chunk))
    return [chunk for _, chunk in sorted(chunks, key=lambda item: item[0], reverse=True)]


def _serve(pipe: Any, settings: Settings, overlay: dict[Any, str]) -> None:
    """A process's life: a chunk comes in, a result a file goes out, None asks for the next chunk."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted too, and ends this one
    source.overlay = overlay
    analyser = work.make_analyser(settings)
    try:
        while (chunk := pipe.recv()) is not None:
            for path in chunk:
                pipe.send(work.analyse_file(analyser, path))
            pipe.send(None)
    except (EOFError, BrokenPipeError):  # the parent is gone
        pass


class _Pool:
    """Processes, the pipes to them, and what each is at."""

    def __init__(self, chunks: Sequence[list[str]], settings: Settings, done: Done, method: str) -> None:
        import multiprocessing

        self.context: Any = multiprocessing.get_context(method)
        self.waiting = collections.deque(chunks)
        self.settings, self.done = settings, done
        self.processes: dict[Any, Any] = {}  # by pipe
        self.at: dict[Any, collections.deque[str]] = {}

    def run(self, jobs: int) -> None:
        from multiprocessing.connection import wait

        try:
            for _ in range(jobs):
                self._start()
            while self.at:
                for pipe in wait(list(self.at)):
                    self._hear(pipe)
        finally:
            for process in self.processes.values():
                process.terminate()
            for pipe, process in self.processes.items():
                process.join()
                pipe.close()

    def _start(self) -> None:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=_serve, args=(theirs, self.settings, source.overlay), daemon=True
        )
        process.start()
        theirs.close()
        self.processes[ours] = process
        self._give(ours)

    def _give(self, pipe: Any) -> None:
        if self.waiting:
            chunk = self.waiting.popleft()
            self.at[pipe] = collections.deque(chunk)
            pipe.send(chunk)
        else:
            self.at.pop(pipe, None)
            pipe.send(None)

    def _hear(self, pipe: Any) -> None:
        try:
            result = pipe.recv()
        except (EOFError, ConnectionResetError):
            self._died(pipe)
            return
        if result is None:
            self._give(pipe)
        else:
            self.at[pipe].popleft()
            self.done(result)

    def _died(self, pipe: Any) -> None:
        process, files = self.processes.pop(pipe), self.at.pop(pipe)
        process.join()
        pipe.close()
        if files:
            code = process.exitcode
            how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
            self.done(work.crashed(files.popleft(), f"the process that analysed this file ended with {how}"))
        if files:
            self.waiting.appendleft(list(files))
        if self.waiting:
            self._start()
