"""Makes the trace of a step from its timeline: plain values, with what goes on beside the core.

The timeline says when instructions run on the core. What copies and collectives do meanwhile follows from that by the
timeline's own rules: copies share what bandwidth the core leaves them in the order in which they were started, and
collectives along an axis go one after another.
"""

import dataclasses

from tpuport.hardware import Generation
from tpuport.topology.compile_report import Source
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.step_trace import CoreSpan, StepTrace, TracedComputation, TracedInstruction, Transfer
from tpuport.topology.timing import code_origins
from tpuport.topology.timing.instruction_work import WorkCounter
from tpuport.topology.timing.timeline import Span, Timeline


def build_trace(
    program: Program, counter: WorkCounter, timeline: Timeline, hardware: Generation
) -> StepTrace:
    """The trace of a timeline that was walked with this counter of work."""
    return _Builder(program, counter, timeline, hardware.device.hbm_bandwidth).build()


class _Builder:
    def __init__(self, program: Program, counter: WorkCounter, timeline: Timeline, bandwidth: float) -> None:
        self.program = program
        self.counter = counter
        self.timeline = timeline
        self.bandwidth = bandwidth
        self._instructions: dict[str, int] = {}
        self._traced: list[TracedInstruction] = []
        self._sources: dict[str, int] = {}
        self._bytes: dict[str, float] = {}

    def build(self) -> StepTrace:
        computations = {name: _Beside(self, name).trace() for name in self.timeline.computations}
        return StepTrace(
            seconds=self.timeline.seconds,
            entry=self.timeline.entry,
            computations=computations,
            instructions=tuple(self._traced),
            sources=tuple(self._sources),
        )

    def index(self, instruction: Instruction) -> int:
        """The index of an instruction among those of the trace, to which it is added."""
        if instruction.name not in self._instructions:
            self._instructions[instruction.name] = len(self._traced)
            self._traced.append(self._describe(instruction))
        return self._instructions[instruction.name]

    def _describe(self, instruction: Instruction) -> TracedInstruction:
        work = self.counter.work(instruction)
        return TracedInstruction(
            name=instruction.name,
            operation=instruction.operation,
            kind=work.kind,
            shape=instruction.type,
            module=code_origins.module(self.program, instruction),
            source=self._source_index(code_origins.source(self.program, instruction)),
            hbm_bytes=work.hbm_bytes,
            flops=work.flops,
        )

    def _source_index(self, source: Source | None) -> int | None:
        if source is None:
            return None
        return self._sources.setdefault(f"{source.file}:{source.line} {source.function}", len(self._sources))

    def called(self, instruction: Instruction) -> tuple[str, ...]:
        """The computations that an instruction executes, in order: of branches, the one that is in the timeline."""
        if instruction.operation not in ("while", "conditional", "call"):
            return ()
        return tuple(name for name in instruction.callees if name in self.timeline.computations)

    def computation_bytes(self, name: str) -> float:
        """What one execution of a computation moves from and to HBM."""
        if name not in self._bytes:
            instructions = self.program.computations[name].instructions
            self._bytes[name] = sum(map(self.moved_bytes, instructions))
        return self._bytes[name]

    def moved_bytes(self, instruction: Instruction) -> float:
        """What one execution of an instruction moves, with the computations that it calls."""
        inside = sum(map(self.computation_bytes, self.called(instruction)))
        return self.counter.work(instruction).hbm_bytes + instruction.rounds * inside


@dataclasses.dataclass
class _Copy:
    """A copy that was started; `start` is None until it moves its first byte."""

    instruction: Instruction
    remaining: float
    start: float | None = None
    end: float = 0.0


class _Beside:
    """Follows one execution of a computation, and what goes on beside the core."""

    def __init__(self, builder: _Builder, computation: str) -> None:
        self._builder = builder
        self._instructions = builder.program.computations[computation].instructions
        self._spans = {span.instruction.name: span for span in builder.timeline.computations[computation]}
        self._now = 0.0
        self._waiting_copies: list[_Copy] = []
        self._copies: list[Transfer] = []
        self._collectives: list[Transfer] = []
        self._links_free: dict[tuple[str, ...], float] = {}

    def trace(self) -> TracedComputation:
        for instruction in self._instructions:
            self._execute(instruction, self._spans.get(instruction.name))
        # What was started ends before the computation is executed again.
        unfinished = sum(copy.remaining for copy in self._waiting_copies) / self._builder.bandwidth
        links_end = max(self._links_free.values(), default=0.0)
        self._advance(max(self._now + unfinished, links_end), 0.0)
        self._retire_copies()
        core = [self._core_span(span) for span in self._spans.values()]
        return TracedComputation(self._now, tuple(core), tuple(self._copies), tuple(self._collectives))

    def _execute(self, instruction: Instruction, span: Span | None) -> None:
        work = self._builder.counter.work(instruction)
        if span is not None:
            self._advance(span.start, 0.0)
        if work.link_seconds:
            self._send(instruction, work.link_seconds, work.axes)
        elif instruction.operation.endswith("-start"):
            self._waiting_copies.append(_Copy(instruction, work.hbm_bytes))
        if span is not None:
            self._advance(span.start + span.busy, self._builder.moved_bytes(instruction))
        self._retire_copies()

    def _send(self, instruction: Instruction, seconds: float, axes: tuple[str, ...]) -> None:
        start = max(self._now, self._links_free.get(axes, 0.0))
        self._links_free[axes] = start + seconds
        self._collectives.append(Transfer(self._builder.index(instruction), start, seconds, axes))

    def _advance(self, until: float, core_bytes: float) -> None:
        """Let copies move with the bandwidth that the core leaves them until then."""
        seconds = until - self._now
        available = seconds * self._builder.bandwidth - core_bytes
        moment = self._now
        self._now = max(self._now, until)
        if available <= 0:
            return
        rate = available / seconds
        for copy in self._waiting_copies:
            moved = min(copy.remaining, available)
            if copy.start is None:
                copy.start = moment
            moment = min(moment + moved / rate, until)
            copy.end = moment
            copy.remaining -= moved
            available -= moved
            if available <= 0:
                break

    def _retire_copies(self) -> None:
        """Record the copies that have moved all of their bytes, but for rounding."""
        while self._waiting_copies and self._waiting_copies[0].remaining < 1e-3:
            copy = self._waiting_copies.pop(0)
            start = self._now if copy.start is None else copy.start
            seconds = max(0.0, copy.end - start)
            if seconds:
                index = self._builder.index(copy.instruction)
                self._copies.append(Transfer(index, start, seconds, ()))

    def _core_span(self, span: Span) -> CoreSpan:
        instruction = span.instruction
        return CoreSpan(
            instruction=self._builder.index(instruction),
            start=span.start,
            seconds=span.busy,
            waiting=span.waiting,
            rounds=instruction.rounds,
            calls=self._builder.called(instruction),
        )
