"""A step as trace events, which Perfetto shows: the format of `jax.profiler`'s traces,
with the same lanes.

Each program is a process, "/device:TPU:0". Its threads are the step, the program, its
instructions one after another, the modules whose code they are, copies that go on
beside them, and collectives along each axis.
"""

import dataclasses
import gzip
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tpuport.topology.compile_messages import CompileResult

# Perfetto shows a million; a file of so many has 20 MB, and rounds of a loop are alike.
MAX_EVENTS: Final = 100_000
_STEPS, _MODULES, _OPERATIONS, _SCOPES, _COPIES, _COLLECTIVES = range(1, 7)
_THREADS: Final = {
    _STEPS: "Steps",
    _MODULES: "XLA Modules",
    _OPERATIONS: "XLA Ops",
    _SCOPES: "Framework Name Scope",
    _COPIES: "Async copies",
}
_WAITING: Final = "waiting"
_BLOCK_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")
# Shorter than this is rounding.
_NO_TIME: Final = 1e-12


@dataclasses.dataclass(frozen=True)
class TraceFile:
    """A trace as text, and how many events it leaves out."""

    text: str
    left_out: int

    def encoded(self, file: Path) -> bytes:
        """The bytes for a file, compressed if its name ends in ".gz"; the same for
        every run.
        """
        data = self.text.encode()
        if file.suffix == ".gz":
            return gzip.compress(data, mtime=0)
        return data


def trace_file(
    results: Sequence[CompileResult], most_events: int = MAX_EVENTS
) -> TraceFile:
    """The traces of all programs that have one.

    Args:
        results: as `document` takes them.
        most_events: rounds of loops are left out where there would be more. An event in
            their place takes their time.
    """
    traced = [result for result in results if result.trace is not None]
    events: list[dict[str, Any]] = []
    left_out = 0
    for process, result in enumerate(traced, start=1):
        device = "/device:TPU:0"
        if len(traced) > 1:
            device += f" {result.target} on {result.topology}"
        program = _Program(result, process, device)
        events += program.events(most_events // len(traced))
        left_out += program.left_out
    document = {
        "displayTimeUnit": "ns",
        "otherData": {"events_left_out": left_out},
        "traceEvents": events,
    }
    return TraceFile(json.dumps(document, ensure_ascii=False), left_out)


class _Program:
    """The events of one program.

    Attributes:
        left_out: events of rounds that are not expanded.
    """

    def __init__(self, result: CompileResult, process: int, device: str) -> None:
        assert result.trace is not None
        self._result = result
        self._trace = result.trace
        self._process = process
        self._device = device
        self._instructions = result.trace["instructions"]
        self._counts: dict[str, int] = {}
        self._axes = sorted(
            {tuple(transfer["axes"]) for transfer in self._transfers("collectives")}
        )
        self._scopes = _Scopes()
        self.left_out = 0

    def events(self, budget: int) -> list[dict[str, Any]]:
        """All events, metadata first."""
        entry, seconds = self._trace["entry"], self._trace["seconds"]
        whole = [
            self._event(_STEPS, "1", 0.0, seconds),
            self._event(_MODULES, f"{self._result.target} ({entry})", 0.0, seconds),
        ]
        inside = list(self._computation(entry, 0.0, budget, in_loop=False))
        scopes = [
            self._event(_SCOPES, name, start, end, {"module": path})
            for name, path, start, end in self._scopes.closed()
        ]
        return [*self._metadata(), *whole, *inside, *scopes]

    def _transfers(self, lane: str) -> Iterator[dict[str, Any]]:
        for computation in self._trace["computations"].values():
            yield from computation[lane]

    def _metadata(self) -> Iterator[dict[str, Any]]:
        yield {
            "ph": "M",
            "pid": self._process,
            "name": "process_name",
            "args": {"name": self._device},
        }
        threads = dict(_THREADS)
        for number, axes in enumerate(self._axes):
            threads[_COLLECTIVES + number] = (
                f"Collectives along {'+'.join(axes) or 'no whole axis'}"
            )
        for thread, name in threads.items():
            metadata = {"ph": "M", "pid": self._process, "tid": thread}
            yield {**metadata, "name": "thread_name", "args": {"name": name}}
            yield {
                **metadata,
                "name": "thread_sort_index",
                "args": {"sort_index": thread},
            }

    def _event(
        self,
        thread: int,
        name: str,
        start: float,
        end: float,
        arguments: dict[str, Any] | None = None,
        kind: str = "",
    ) -> dict[str, Any]:
        """A complete event. Both of its ends are whole nanoseconds, so that neighbours
        do not overlap.
        """
        first, last = round(start * 1e9), round(end * 1e9)
        event = {
            "ph": "X",
            "pid": self._process,
            "tid": thread,
            "name": name,
            "ts": first / 1000,
            "dur": (last - first) / 1000,
        }
        if kind:
            event["cat"] = kind
        if arguments:
            event["args"] = arguments
        return event

    def _count(self, name: str) -> int:
        """The events of one execution of a computation, with all rounds of its
        loops.
        """
        if name not in self._counts:
            computation = self._trace["computations"][name]
            count = len(computation["copies"]) + len(computation["collectives"]) + 1
            for span in computation["core"]:
                count += (
                    1
                    + bool(span["waiting"])
                    + span["rounds"] * sum(map(self._count, span["calls"]))
                )
            self._counts[name] = count
        return self._counts[name]

    def _computation(
        self, name: str, start: float, budget: int, *, in_loop: bool
    ) -> Iterator[dict[str, Any]]:
        """What a computation executes, beginning at a moment of the step."""
        computation = self._trace["computations"][name]
        loops = [span for span in computation["core"] if span["calls"]]
        inside = sum(
            span["rounds"] * sum(map(self._count, span["calls"])) for span in loops
        )
        # The loops share what is left of the events by their number of events.
        shared = min(1.0, max(0, budget - (self._count(name) - inside)) / (inside or 1))
        now = start
        for span in computation["core"]:
            begin = start + span["start"]
            now = begin + span["seconds"]
            instruction = self._instructions[span["instruction"]]
            path = instruction["module"]
            if in_loop:
                path = _BLOCK_NUMBER.sub(".*", path)
            if span["waiting"]:
                yield self._wait(
                    instruction["name"], path, begin - span["waiting"], begin
                )
            if span["calls"]:
                yield from self._rounds(span, instruction["name"], begin, shared)
            elif span["seconds"]:
                self._scopes.add(path, begin, now)
                yield self._event(
                    _OPERATIONS,
                    instruction["name"],
                    begin,
                    now,
                    self._arguments(instruction, path),
                    instruction["kind"],
                )
        end = start + computation["seconds"]
        if end - now > _NO_TIME:
            yield self._wait(f"the end of {name}", "", now, end)
        yield from self._beside(computation, start)

    def _rounds(
        self, span: dict[str, Any], name: str, start: float, shared: float
    ) -> Iterator[dict[str, Any]]:
        """The rounds of a loop, as many as there is room for, and one event for the
        others.
        """
        calls, rounds = span["calls"], span["rounds"]
        round_count = sum(map(self._count, calls))
        budget = int(shared * rounds * round_count)
        shown = min(rounds, max(budget // round_count, int(budget > 0)))
        if shared == 1.0:
            shown = rounds
        now = start
        for _ in range(shown):
            for callee in calls:
                yield from self._computation(
                    callee, now, budget // shown, in_loop=rounds > 1
                )
                now += self._trace["computations"][callee]["seconds"]
        if shown < rounds:
            left_out = (rounds - shown) * round_count
            self.left_out += left_out
            self._scopes.add("", now, start + span["seconds"])
            yield self._event(
                _OPERATIONS, f"{rounds - shown} more rounds of {name}", now, start + span["seconds"],
                {"events_left_out": left_out}, "rounds",
            )  # fmt: skip

    def _wait(self, what: str, path: str, start: float, end: float) -> dict[str, Any]:
        self._scopes.add(path, start, end)
        return self._event(
            _OPERATIONS, f"wait for {what}", start, end, {"module": path}, _WAITING
        )

    def _beside(
        self, computation: dict[str, Any], start: float
    ) -> Iterator[dict[str, Any]]:
        """Copies and collectives."""
        for transfer in itertools.chain(
            computation["copies"], computation["collectives"]
        ):
            instruction = self._instructions[transfer["instruction"]]
            thread = _COPIES
            if transfer["axes"]:
                thread = _COLLECTIVES + self._axes.index(tuple(transfer["axes"]))
            begin = start + transfer["start"]
            arguments = self._arguments(instruction, instruction["module"])
            yield self._event(
                thread,
                instruction["name"],
                begin,
                begin + transfer["seconds"],
                arguments,
                instruction["kind"],
            )

    def _arguments(self, instruction: dict[str, Any], path: str) -> dict[str, Any]:
        """What is known of an instruction, by the names that XProf gives it; without
        what is empty.
        """
        source = instruction["source"]
        arguments = {
            "hlo_category": instruction["kind"],
            "shape_with_layout": instruction["shape"],
            "module": path,
            "source": "" if source is None else self._trace["sources"][source],
            "bytes_accessed": instruction["hbm_bytes"],
            "flops": instruction["flops"],
        }
        return {name: value for name, value in arguments.items() if value}


class _Scopes:
    """The modules that are open at each moment, outermost first, from instructions in
    the order of time.
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, float]] = []
        self._end = 0.0
        self._closed: list[tuple[str, str, float, float]] = []

    def add(self, path: str, start: float, end: float) -> None:
        """An instruction of a module runs."""
        parts = path.split(".") if path else []
        shared = 0
        for (name, _), part in zip(self._open, parts, strict=False):
            if name != part:
                break
            shared += 1
        self._close(shared)
        self._open += [(part, start) for part in parts[shared:]]
        self._end = end

    def closed(self) -> list[tuple[str, str, float, float]]:
        """Name, whole path, start and end of each module, once all instructions were
        added.
        """
        self._close(0)
        return self._closed

    def _close(self, keep: int) -> None:
        while len(self._open) > keep:
            path = ".".join(name for name, _ in self._open)
            name, start = self._open.pop()
            self._closed.append((name, path, start, self._end))
