"""Walks the schedule of a compiled program as the device executes it, and says when
each instruction runs.

The compiler fixes the order of instructions. The core executes one after another: each
takes as long as its own schedule, or as its arrays take to and from HBM if that is
longer. Copies and collectives that are started and ended apart go on beside it: copies
with the bandwidth of HBM that the core leaves them, in the order in which they were
started, and collectives along an axis one after another. Where the core needs one that
has not ended, it waits.

One round of a loop is walked, and counts as often as the loop runs.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final

from tpuport.hardware import Generation
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.timing.instruction_work import COLLECTIVES, Work, WorkCounter

_COLLECTIVE_START: Final = "AsyncCollectiveStart"
_COLLECTIVE_DONE: Final = "AsyncCollectiveDone"
# Below this nothing is left of a copy but rounding.
_NOTHING: Final = 1e-6


@dataclasses.dataclass(frozen=True)
class Span:
    """An instruction on the core.

    Attributes:
        instruction, work: what runs.
        start: seconds since its computation began, in one round of a loop.
        busy: seconds that it takes; of a loop, of all its rounds.
        waiting: seconds before it in which the core waits for what it needs.
        times: how often a step executes it.
        calls: the computations that it executes, in order: of branches, the one that
            takes longest.
    """

    instruction: Instruction
    work: Work
    start: float
    busy: float
    waiting: float
    times: int
    calls: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A copy or a collective, from its first byte to its last.

    Attributes:
        instruction: that starts it.
        start: seconds since its computation began; seconds: that it takes.
        axes: of the mesh that a collective goes along; empty for a copy.
    """

    instruction: Instruction
    start: float
    seconds: float
    axes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Execution:
    """One execution of a computation.

    Attributes:
        seconds: that it takes; hbm_bytes: that it reads and writes.
        spans: on the core, in order. Loops and branches are spans, and what they
            execute are computations of their own.
        copies, collectives: beside the core, in the order in which they begin.
    """

    seconds: float
    hbm_bytes: float
    spans: tuple[Span, ...]
    copies: tuple[Transfer, ...]
    collectives: tuple[Transfer, ...]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """One execution of a program on each of its devices.

    Attributes:
        entry: the name of the computation that is the program.
        computations: by name, those that are executed.
    """

    entry: str
    computations: dict[str, Execution]

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.computations[self.entry].seconds

    @property
    def leaves(self) -> list[Span]:
        """Spans without loops and branches, which only have the spans of what they
        execute.
        """
        spans = [
            span for execution in self.computations.values() for span in execution.spans
        ]
        return [span for span in spans if not span.calls]


def walk(program: Program, counter: WorkCounter, hardware: Generation) -> Timeline:
    """The timeline of one step."""
    walker = _Walker(program, counter, hardware)
    return Timeline(program.entry, walker.executed(program.entry))


@dataclasses.dataclass
class _Copy:
    """A copy that was started, and the bytes that it still has to move; `start` is None
    until it moves the first.
    """

    instruction: Instruction
    remaining: float
    start: float | None = None
    end: float = 0.0

    def move(self, nbytes: float, start: float, end: float) -> None:
        """Move some of its bytes between two moments."""
        if self.start is None:
            self.start = start
        self.end = end
        self.remaining -= nbytes


class _Walker:
    def __init__(
        self, program: Program, counter: WorkCounter, hardware: Generation
    ) -> None:
        self.program = program
        self.counter = counter
        self._bandwidth = hardware.device.hbm_bandwidth
        self._walked: dict[str, Execution] = {}

    def walk(self, name: str) -> Execution:
        """One execution of a computation, with nothing under way when it begins."""
        if name not in self._walked:
            self._walked[name] = _Core(self, name, self._bandwidth).run()
        return self._walked[name]

    def executed(self, name: str) -> dict[str, Execution]:
        """A computation, and those that it executes."""
        computations = {name: self.walk(name)}
        for span in self.walk(name).spans:
            for callee in span.calls:
                computations |= self.executed(callee)
        return computations

    def calls(self, instruction: Instruction) -> tuple[str, ...]:
        """The computations that the core executes for an instruction: of branches, the
        one that takes longest.
        """
        match instruction.operation:
            case "conditional":
                return (
                    max(
                        instruction.callees,
                        key=lambda callee: self.walk(callee).seconds,
                    ),
                )
            case "while" | "call":
                return instruction.callees
            case _:
                return ()


class _Core:
    """Executes one computation, and records what runs on the core and beside it."""

    def __init__(self, walker: _Walker, computation: str, bandwidth: float) -> None:
        self._walker = walker
        self._instructions = walker.program.computations[computation].instructions
        self._named = walker.program.computations[computation].named
        self._bandwidth = bandwidth
        self._now = 0.0
        self._hbm_bytes = 0.0
        # By the instruction that started them, in the order in which they were started.
        self._copies: dict[str, _Copy] = {}
        self._collective_ends: dict[str, float] = {}
        # When the links along each axis are free, and when all of them are.
        self._axis_free: dict[str, float] = {}
        self._links_free = 0.0
        self._spans: list[Span] = []
        self._copied: list[Transfer] = []
        self._sent: list[Transfer] = []

    def run(self) -> Execution:
        for instruction in self._instructions:
            self._execute(instruction)
        self._wait_at_the_end()
        for copy in self._copies.values():
            self._record_copy(copy)
        return Execution(
            self._now,
            self._hbm_bytes,
            tuple(self._spans),
            tuple(sorted(self._copied, key=_start)),
            tuple(sorted(self._sent, key=_start)),
        )

    def _wait_at_the_end(self) -> None:
        """Wait for what outlasts the last instruction, as a part of it: a computation
        begins with nothing under way.
        """
        copies = sum(copy.remaining for copy in self._copies.values()) / self._bandwidth
        links = max(
            (end - self._now for end in self._collective_ends.values()), default=0.0
        )
        seconds = max(copies, links, 0.0)
        if seconds * self._bandwidth <= _NOTHING:
            return
        self._advance(seconds, 0.0)
        last = self._instructions[-1]
        if self._spans and self._spans[-1].instruction is last:
            span = self._spans.pop()
        else:
            span = Span(
                last, self._walker.counter.work(last), self._now, 0.0, 0.0, last.times
            )
        self._spans.append(
            dataclasses.replace(
                span, start=self._now - span.busy, waiting=span.waiting + seconds
            )
        )

    def _execute(self, instruction: Instruction) -> None:
        work = self._walker.counter.work(instruction)
        calls = self._walker.calls(instruction)
        waiting = self._wait_for_operands(instruction)
        start = self._now
        if calls:
            self._call(instruction, calls)
        elif work.kind == COLLECTIVES and _starts(self._walker.program, instruction):
            self._collective_ends[instruction.name] = self._send(instruction, work)
            if instruction.operation == "fusion":
                # It may compute beside what it starts.
                self._run(work)
            else:
                self._start_copy(instruction, work)
        elif instruction.operation.endswith("-start"):
            self._start_copy(instruction, work)
        else:
            end = self._send(instruction, work) if work.link_seconds else self._now
            self._run(work, end - self._now)
        busy = self._now - start
        if busy or waiting:
            self._spans.append(
                Span(instruction, work, start, busy, waiting, instruction.times, calls)
            )

    def _start_copy(self, instruction: Instruction, work: Work) -> None:
        """Let bytes move beside the core: of a copy, or what a collective reads and
        writes.
        """
        self._copies[instruction.name] = _Copy(instruction, work.hbm_bytes)
        self._hbm_bytes += work.hbm_bytes

    def _run(self, work: Work, link_seconds: float = 0.0) -> None:
        """The core is busy with an instruction until it has computed, read and written,
        and sent.
        """
        memory_seconds = work.hbm_bytes / self._bandwidth
        self._advance(
            max(work.core_seconds, memory_seconds, link_seconds), work.hbm_bytes
        )

    def _call(self, instruction: Instruction, calls: Iterable[str]) -> None:
        for callee in calls:
            execution = self._walker.walk(callee)
            self._advance(
                instruction.rounds * execution.seconds,
                instruction.rounds * execution.hbm_bytes,
            )

    def _send(self, instruction: Instruction, work: Work) -> float:
        """Send a collective as soon as the links along all of its axes are free; when
        it ends.
        """
        # A group that is not whole axes may go along any of them.
        busy = (
            [self._axis_free.get(axis, 0.0) for axis in work.axes]
            if work.axes
            else self._axis_free.values()
        )
        begin = max(self._now, self._links_free, *busy)
        end = begin + work.link_seconds
        self._sent.append(Transfer(instruction, begin, work.link_seconds, work.axes))
        if not work.axes:
            self._links_free = end
        self._axis_free |= dict.fromkeys(work.axes, end)
        return end

    def _advance(self, seconds: float, hbm_bytes: float) -> None:
        """Let time pass in which the core moves some bytes itself; copies get the rest
        of the bandwidth.
        """
        moment = self._now
        self._now += seconds
        self._hbm_bytes += hbm_bytes
        available = seconds * self._bandwidth - hbm_bytes
        if available <= _NOTHING:
            return
        rate = available / seconds
        for copy in self._copies.values():
            moved = min(copy.remaining, available)
            if moved <= _NOTHING:
                continue
            end = min(moment + moved / rate, self._now)
            copy.move(moved, moment, end)
            moment = end
            available -= moved

    def _wait_for_operands(self, instruction: Instruction) -> float:
        """Wait for the copies and collectives that an instruction ends; the seconds
        that it takes.
        """
        if not _ends_something(self._walker.program, instruction):
            return 0.0
        start = self._now
        for name in instruction.operands:
            name = self._started_by(name)
            if name in self._copies:
                self._wait_for_copy(name)
            end = self._collective_ends.pop(name, self._now)
            if end > self._now:
                self._advance(end - self._now, 0.0)
        return self._now - start

    def _started_by(self, name: str) -> str:
        """The instruction that started what this one hands on: an update, or an element
        of a tuple.
        """
        while (
            name in self._named
            and name not in self._copies
            and name not in self._collective_ends
        ):
            instruction = self._named[name]
            if not _hands_on(instruction) or not instruction.operands:
                break
            name = instruction.operands[0]
        return name

    def _wait_for_copy(self, name: str) -> None:
        """Let time pass until a copy has ended; those that were started before it go
        first.
        """
        before = 0.0
        for other, copy in self._copies.items():
            before += copy.remaining
            if other == name:
                break
        if before > _NOTHING:
            self._advance(before / self._bandwidth, 0.0)
        self._record_copy(self._copies.pop(name))

    def _record_copy(self, copy: _Copy) -> None:
        # A collective is a transfer already.
        if self._walker.counter.work(copy.instruction).kind == COLLECTIVES:
            return
        # What moves no bytes takes no time.
        if copy.start is not None and copy.end > copy.start:
            self._copied.append(
                Transfer(copy.instruction, copy.start, copy.end - copy.start)
            )


def _start(transfer: Transfer) -> float:
    return transfer.start


def _hands_on(instruction: Instruction) -> bool:
    """Whether its result is what its operand is the start of."""
    return instruction.operation in (
        "get-tuple-element",
        "bitcast",
    ) or instruction.operation.endswith("-update")


def _starts(program: Program, instruction: Instruction) -> bool:
    """Whether something else ends what an instruction, or a fusion, begins."""
    inside = program.fused_computation(instruction)
    if inside is None:
        return instruction.operation.endswith("-start")
    return any(fused.target == _COLLECTIVE_START for fused in inside.instructions)


def _ends_something(program: Program, instruction: Instruction) -> bool:
    if instruction.operation.endswith("-done"):
        return True
    inside = program.fused_computation(instruction)
    return inside is not None and inside.root.target == _COLLECTIVE_DONE
