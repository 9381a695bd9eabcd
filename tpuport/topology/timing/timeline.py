"""Walks the schedule of a compiled program as the device executes it, and says when each instruction runs.

The compiler fixes the order of instructions. The core executes one after another: each takes as long as its own
schedule, or as its arrays take to and from HBM if that is longer. Copies and collectives that are started and ended
apart go on beside it: copies with the bandwidth of HBM that the core leaves them, in the order in which they were
started, and collectives along an axis one after another. Where the core needs one that has not ended, it waits.

One round of a loop is walked, and counts as often as the loop runs.
"""

import dataclasses
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
    """

    instruction: Instruction
    work: Work
    start: float
    busy: float
    waiting: float
    times: int


@dataclasses.dataclass(frozen=True)
class Timeline:
    """One execution of a program on each of its devices.

    Attributes:
        seconds: of a step.
        computations: by name, those that are executed, with their spans in order. Loops and branches are spans of the
            computation that they are in, and computations of their own.
        entry: the name of the computation that is the program.
    """

    seconds: float
    computations: dict[str, tuple[Span, ...]]
    entry: str

    @property
    def leaves(self) -> list[Span]:
        """Spans without loops and branches, which only have the spans of what they execute."""
        spans = [span for spans in self.computations.values() for span in spans]
        return [span for span in spans if not _contains_code(span.instruction)]


def walk(program: Program, counter: WorkCounter, hardware: Generation) -> Timeline:
    """The timeline of one step."""
    walker = _Walker(program, counter, hardware)
    walked = walker.walk(program.entry)
    return Timeline(walked.seconds, walker.executed(program.entry), program.entry)


@dataclasses.dataclass(frozen=True)
class _Walked:
    """A computation that was walked: its seconds, the bytes of HBM that it moved, and its spans."""

    seconds: float
    hbm_bytes: float
    spans: tuple[Span, ...]


@dataclasses.dataclass
class _Transfer:
    """A copy that was started, and the bytes that it still has to move."""

    remaining: float


class _Walker:
    def __init__(self, program: Program, counter: WorkCounter, hardware: Generation) -> None:
        self._program = program
        self._counter = counter
        self._bandwidth = hardware.device.hbm_bandwidth
        self._walked: dict[str, _Walked] = {}

    def walk(self, name: str) -> _Walked:
        """One execution of a computation, with nothing under way when it begins."""
        if name not in self._walked:
            self._walked[name] = _Core(self, name, self._bandwidth).run()
        return self._walked[name]

    def executed(self, name: str) -> dict[str, tuple[Span, ...]]:
        """A computation's spans, and those of the computations that it executes."""
        spans = self.walk(name).spans
        computations = {name: spans}
        for span in spans:
            for callee in self.executed_callees(span.instruction):
                computations |= self.executed(callee)
        return computations

    def executed_callees(self, instruction: Instruction) -> tuple[str, ...]:
        """The computations that an instruction executes: of branches, the one that takes longest."""
        if not _contains_code(instruction):
            return ()
        if instruction.operation == "conditional":
            return (max(instruction.callees, key=lambda callee: self.walk(callee).seconds),)
        return instruction.callees

    def program_work(self, instruction: Instruction) -> Work:
        return self._counter.work(instruction)

    @property
    def program(self) -> Program:
        return self._program


class _Core:
    """Executes one computation, and keeps what goes on beside it."""

    def __init__(self, walker: _Walker, computation: str, bandwidth: float) -> None:
        self._walker = walker
        self._instructions = walker.program.computations[computation].instructions
        self._bandwidth = bandwidth
        self._now = 0.0
        self._hbm_bytes = 0.0
        # By the instruction that started them, in the order in which they were started.
        self._copies: dict[str, _Transfer] = {}
        # When each collective ends, and when the links along each axis are free.
        self._collective_ends: dict[str, float] = {}
        self._links_free: dict[tuple[str, ...], float] = {}
        self._spans: list[Span] = []

    def run(self) -> _Walked:
        for instruction in self._instructions:
            self._execute(instruction)
        # What was started must have ended before the computation is called again.
        unfinished = sum(copy.remaining for copy in self._copies.values()) / self._bandwidth
        links = max((end - self._now for end in self._collective_ends.values()), default=0.0)
        self._wait_at_the_end(max(unfinished, links, 0.0))
        return _Walked(self._now, self._hbm_bytes, tuple(self._spans))

    def _wait_at_the_end(self, seconds: float) -> None:
        """Wait for what outlasts the last instruction, as a part of that instruction."""
        if seconds * self._bandwidth <= _NOTHING:
            return
        self._now += seconds
        last = self._instructions[-1]
        if self._spans and self._spans[-1].instruction is last:
            span = self._spans.pop()
        else:
            span = Span(last, self._walker.program_work(last), self._now, 0.0, 0.0, last.times)
        self._spans.append(
            dataclasses.replace(span, start=self._now - span.busy, waiting=span.waiting + seconds)
        )

    def _execute(self, instruction: Instruction) -> None:
        work = self._walker.program_work(instruction)
        waiting = self._wait_for_operands(instruction)
        start = self._now
        if _contains_code(instruction):
            self._call(instruction)
        elif work.kind == COLLECTIVES and _starts(self._walker.program, instruction):
            self._start_collective(instruction, work)
        elif instruction.operation.endswith("-start"):
            self._copies[instruction.name] = _Transfer(work.hbm_bytes)
            self._hbm_bytes += work.hbm_bytes
        else:
            self._run(work)
        busy = self._now - start
        if busy or waiting:
            self._spans.append(Span(instruction, work, start, busy, waiting, instruction.times))

    def _run(self, work: Work) -> None:
        """The core is busy with an instruction until it has computed, read and written, or sent."""
        memory_seconds = work.hbm_bytes / self._bandwidth
        seconds = max(work.core_seconds, memory_seconds)
        if work.link_seconds:
            begin = max(0.0, self._links_free.get(work.axes, 0.0) - self._now)
            seconds = max(seconds, begin + work.link_seconds)
            self._links_free[work.axes] = self._now + seconds
        self._advance(seconds, work.hbm_bytes)

    def _call(self, instruction: Instruction) -> None:
        rounds = instruction.rounds if instruction.operation == "while" else 1
        for callee in self._walker.executed_callees(instruction):
            walked = self._walker.walk(callee)
            self._advance(rounds * walked.seconds, rounds * walked.hbm_bytes)

    def _start_collective(self, instruction: Instruction, work: Work) -> None:
        # A fusion may compute beside what it starts.
        begin = max(self._now, self._links_free.get(work.axes, 0.0))
        self._collective_ends[instruction.name] = self._links_free[work.axes] = begin + work.link_seconds
        self._run(dataclasses.replace(work, link_seconds=0.0))

    def _advance(self, seconds: float, hbm_bytes: float) -> None:
        """Let time pass in which the core moves some bytes itself; copies get the rest of the bandwidth."""
        self._now += seconds
        self._hbm_bytes += hbm_bytes
        available = seconds * self._bandwidth - hbm_bytes
        for copy in self._copies.values():
            if available <= 0:
                break
            moved = min(copy.remaining, available)
            copy.remaining -= moved
            available -= moved

    def _wait_for_operands(self, instruction: Instruction) -> float:
        """Wait for the copies and collectives that an instruction ends; the seconds that it takes."""
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
        """The instruction that started what this one hands on: an update, or an element of a tuple."""
        named = self._walker.program.computations[self._instructions[0].computation].named
        while name in named and name not in self._copies and name not in self._collective_ends:
            instruction = named[name]
            handed_on = instruction.operation in (
                "get-tuple-element",
                "bitcast",
            ) or instruction.operation.endswith("-update")
            if not handed_on or not instruction.operands:
                break
            name = instruction.operands[0]
        return name

    def _wait_for_copy(self, name: str) -> None:
        """Let time pass until a copy has ended; those that were started before it go first."""
        before = 0.0
        for other, copy in self._copies.items():
            before += copy.remaining
            if other == name:
                break
        if before > _NOTHING:
            self._advance(before / self._bandwidth, 0.0)
        del self._copies[name]


def _contains_code(instruction: Instruction) -> bool:
    """Whether the core executes other computations for it."""
    return instruction.operation in ("while", "conditional", "call")


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
