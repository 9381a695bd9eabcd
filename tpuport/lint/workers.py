"""The analysis of files, one after another or over several processes.

A process that dies costs the file it was working on, and no other.
"""

import collections
import contextlib
import dataclasses
import functools
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from tpuport.base.mappings import group_by
from tpuport.base.waiting_threads import may_fork
from tpuport.lint import source, suppressions
from tpuport.lint.configuration import Settings, parse_torchax_version
from tpuport.lint.diagnostics import make_finding
from tpuport.lint.entry_verdicts import TracedEntry
from tpuport.lint.findings import Finding
from tpuport.lint.frame_room import with_frame_room
from tpuport.lint.suppressions import Suppressions

# With less source than this, in bytes, starting processes costs more than it saves.
_WORTH_PROCESSES: Final = 200_000
# What one process gets at once: the files of a directory share imports, which are then
# analysed once.
_CHUNK_BYTES: Final = 300_000
# What a worker hears from its pipe when the parent is gone.
_GONE: Final = (EOFError, BrokenPipeError)
# The garbage collector takes about a second for a million objects; so many are some 550
# MB.
_OBJECTS_WITHOUT_COLLECTION: Final = 3_000_000
# Counting the objects goes through all of them too, though quickly.
_FILES_PER_COUNT: Final = 64


@runtime_checkable
class AnalysesFiles(Protocol):
    """What the workers need of `analysis.Analyser`."""

    def analyse(self, source: source.SourceFile) -> Any:
        """An `analysis.Outcome`."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileResult:
    """The result of analysing one file.

    Attributes:
        path: absolute.
        lines: number of lines.
        findings: with absolute paths; some may lie in other files.
        dependencies: absolute paths that the analysis looked at, including those that
            do not exist.
        entry_points: number of them.
        traced: `path:qualname` of functions that tracing reaches.
        suppressions: the file's own comments.
        failed: the analysis has no result; the findings say why.
        entries: its model classes and compiled functions, with the errors that stop
            them.
    """

    path: str
    lines: int
    findings: tuple[Finding, ...]
    dependencies: tuple[str, ...] = ()
    entry_points: int = 0
    traced: frozenset[str] = frozenset()
    suppressions: Suppressions = dataclasses.field(default_factory=Suppressions)
    failed: bool = False
    entries: tuple[TracedEntry, ...] = ()


def make_real_analyser(settings: Settings) -> AnalysesFiles:
    """The analysis with every rule that applies to the torchax version; settings select
    among findings later.
    """
    # Imported here: a run whose results are all cached does without the interpreter.
    from tpuport.lint.analysis import Analyser, Options
    from tpuport.lint.rules.rule_registry import all_rules

    rules = tuple(
        rule
        for rule in all_rules()
        if not rule.until
        or settings.torchax < parse_torchax_version(rule.until, rule.id)
    )
    return Analyser(
        Options(
            rules,
            settings.torchax,
            settings.entry_points,
            settings.training,
            settings.patched,
        )
    )


# Creates the analyser for some settings. A variable so that tests can replace it.
make_analyser: Callable[[Settings], AnalysesFiles] = make_real_analyser


def analyse_file(analyser: AnalysesFiles, path: str) -> FileResult:
    """Read a file and analyse it; every failure becomes a finding."""
    try:
        file = source.read(Path(path), path)
    except source.Unreadable as error:
        return FileResult(path, 0, (error.finding,), failed=True)
    try:
        outcome = with_frame_room(functools.partial(analyser.analyse, file))
        comments = suppressions.parse_suppressions(file.text)
    except RecursionError:
        return _failed_result(
            path, "the code is nested too deeply to be followed", len(file.lines)
        )
    except Exception as error:  # noqa: BLE001 - a failure on one file must not end the analysis of the others
        reason = f"the analysis failed: {type(error).__name__}: {error} ({_raising_line(error)})"
        return _failed_result(path, reason, len(file.lines))
    ends_with_newline = not file.lines[-1]
    return FileResult(
        path,
        len(file.lines) - ends_with_newline,
        tuple(outcome.findings),
        tuple(outcome.dependencies),
        outcome.entry_points,
        frozenset(outcome.traced),
        comments,
        entries=tuple(outcome.entries),
    )


def _failed_result(path: str, reason: str, lines: int = 0) -> FileResult:
    finding = make_finding("TPU006", path, " ".join(reason.split()))
    return FileResult(path, lines, (finding,), failed=True)


def _raising_line(error: BaseException) -> str:
    """`file.py:12` of the innermost frame of an error's traceback."""
    *_, innermost = traceback.extract_tb(error.__traceback__)
    return f"{Path(innermost.filename).name}:{innermost.lineno}"


ResultHandler = Callable[[FileResult], None]


def analyse_files(
    paths: Sequence[str], settings: Settings, handle_result: ResultHandler
) -> None:
    """Analyse files, in no particular order.

    Args:
        paths: absolute.
        settings: `settings.jobs` is the number of processes; 0 for the number of cores.
        handle_result: receives each result, in this process, as soon as it is there.
    """
    # An analyser takes longer to import than a run that has all results already.
    if not paths:
        return
    sizes = {path: _file_size(path) for path in paths}
    chunks = _divide_into_chunks(sizes)
    jobs = min(settings.jobs or _core_count(), len(chunks))
    # One process is worth it too: it collects its own garbage, and rarely.
    is_large = sum(sizes.values()) >= _WORTH_PROCESSES
    if is_large or (settings.jobs > 1 and jobs > 1):
        start_method = _process_start_method(explicit=settings.jobs > 1)
        if start_method is not None:
            _Pool(chunks, settings, handle_result, start_method).run(jobs)
            return
    recursion_limit = sys.getrecursionlimit()
    try:
        # It raises the limit, because the code it follows may be nested deeply.
        analyser = make_analyser(settings)
        for path in paths:
            handle_result(analyse_file(analyser, path))
    finally:
        sys.setrecursionlimit(recursion_limit)


def _core_count() -> int:
    # Not on macOS and Windows.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _process_start_method(*, explicit: bool) -> str | None:
    """How to start processes: forking is quick, and safe if no other thread may hold a
    lock. None to start none.
    """
    has_libraries = bool({"jax", "torch"} & sys.modules.keys())
    if hasattr(os, "fork") and may_fork() and not has_libraries:
        return "fork"
    return "spawn" if explicit else None


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - faster for a string
    except (OSError, ValueError):
        return 0


def _divide_into_chunks(sizes: dict[str, int]) -> list[list[str]]:
    """The files in chunks of one directory, the largest chunk first, so that all
    processes end at about one time.
    """
    paths_by_directory = group_by(sizes, os.path.dirname)
    chunks: list[list[str]] = []
    for paths in paths_by_directory.values():
        chunk: list[str] = []
        chunk_size = 0
        for path in sorted(paths, key=sizes.__getitem__, reverse=True):
            if chunk and chunk_size + sizes[path] > _CHUNK_BYTES:
                chunks.append(chunk)
                chunk, chunk_size = [], 0
            chunk.append(path)
            chunk_size += sizes[path]
        chunks.append(chunk)
    return sorted(
        chunks, key=lambda chunk: sum(sizes[path] for path in chunk), reverse=True
    )


def _run_worker(pipe: Any, settings: Settings, overlay: dict[Any, str]) -> None:
    """A worker process: it receives a chunk, sends one result per file, and None to ask
    for the next chunk.
    """
    # Ctrl-C also interrupts the parent, which then terminates this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source.overlay = overlay
    analyser = make_analyser(settings)
    collector = _Collector()
    gc.disable()
    with contextlib.suppress(*_GONE):
        while (chunk := pipe.recv()) is not None:
            for path in chunk:
                pipe.send(analyse_file(analyser, path))
                collector.note_file()
            pipe.send(None)


class _Collector:
    """Decides when the garbage collector, which is off, goes through the trees of all
    files.

    Hardly anything is garbage but the modules that are dropped, which are cycles; so it
    is when the number of objects has doubled.
    """

    def __init__(self) -> None:
        self.analysed = 0
        self.most_objects = _OBJECTS_WITHOUT_COLLECTION

    def note_file(self) -> None:
        """Collect garbage if there may be much of it, after the analysis of a file."""
        gc.freeze()
        self.analysed += 1
        if self.analysed % _FILES_PER_COUNT:
            return
        if gc.get_freeze_count() > self.most_objects:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self.most_objects = max(
                _OBJECTS_WITHOUT_COLLECTION, 2 * gc.get_freeze_count()
            )


class _Pool:
    """Worker processes, by the pipe to each, and the files that each still has to
    analyse.
    """

    def __init__(
        self,
        chunks: Sequence[list[str]],
        settings: Settings,
        handle_result: ResultHandler,
        start_method: str,
    ) -> None:
        import multiprocessing

        self.context: Any = multiprocessing.get_context(start_method)
        self.chunks = collections.deque(chunks)
        self.settings = settings
        self.handle_result = handle_result
        self.processes: dict[Any, Any] = {}
        self.remaining_files: dict[Any, collections.deque[str]] = {}

    def run(self, jobs: int) -> None:
        from multiprocessing.connection import wait

        try:
            for _ in range(jobs):
                self._start_process()
            while self.remaining_files:
                for pipe in wait(list(self.remaining_files)):
                    self._receive(pipe)
        finally:
            for process in self.processes.values():
                process.terminate()
            for pipe, process in self.processes.items():
                process.join()
                pipe.close()

    def _start_process(self) -> None:
        pipe, worker_pipe = self.context.Pipe()
        arguments = (worker_pipe, self.settings, source.overlay)
        process = self.context.Process(target=_run_worker, args=arguments, daemon=True)
        process.start()
        # Only with the parent's copy closed does the pipe end when the worker dies.
        worker_pipe.close()
        self.processes[pipe] = process
        self._send_chunk(pipe)

    def _send_chunk(self, pipe: Any) -> None:
        if self.chunks:
            chunk = self.chunks.popleft()
            self.remaining_files[pipe] = collections.deque(chunk)
            pipe.send(chunk)
        else:
            self.remaining_files.pop(pipe, None)
            pipe.send(None)

    def _receive(self, pipe: Any) -> None:
        try:
            result = pipe.recv()
        except (EOFError, ConnectionResetError):
            self._replace_process(pipe)
            return
        if result is None:
            self._send_chunk(pipe)
        else:
            self.remaining_files[pipe].popleft()
            self.handle_result(result)

    def _replace_process(self, pipe: Any) -> None:
        """Report the file at which a process died, and let another one continue after
        it.
        """
        process = self.processes.pop(pipe)
        files = self.remaining_files.pop(pipe)
        process.join()
        pipe.close()
        if files:
            reason = f"the process that analysed this file ended with {_describe_exit(process.exitcode)}"
            self.handle_result(_failed_result(files.popleft(), reason))
        if files:
            self.chunks.appendleft(list(files))
        if self.chunks:
            self._start_process()


def _describe_exit(code: int | None) -> str:
    # multiprocessing reports a signal as its negative number.
    if code is not None and code < 0:
        return f"signal {-code}"
    return f"exit code {code}"
