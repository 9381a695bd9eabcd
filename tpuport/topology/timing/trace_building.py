"""Makes the trace of a step from its timeline: the same in plain values, with what is
known of each instruction.
"""

from collections.abc import Iterable

from tpuport.topology.compile_report import Source
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.step_trace import (
    CoreSpan,
    StepTrace,
    TracedComputation,
    TracedInstruction,
    Transfer,
)
from tpuport.topology.timing import code_origins, timeline
from tpuport.topology.timing.instruction_work import WorkCounter


def build_trace(
    program: Program, counter: WorkCounter, walked: timeline.Timeline
) -> StepTrace:
    """The trace of a timeline that was walked with this counter of work."""
    return _Builder(program, counter).build(walked)


class _Builder:
    def __init__(self, program: Program, counter: WorkCounter) -> None:
        self._program = program
        self._counter = counter
        self._indices: dict[str, int] = {}
        self._instructions: list[TracedInstruction] = []
        self._sources: dict[str, int] = {}

    def build(self, walked: timeline.Timeline) -> StepTrace:
        computations = {
            name: self._computation(execution)
            for name, execution in walked.computations.items()
        }
        return StepTrace(
            seconds=walked.seconds,
            entry=walked.entry,
            computations=computations,
            instructions=tuple(self._instructions),
            sources=tuple(self._sources),
        )

    def _computation(self, execution: timeline.Execution) -> TracedComputation:
        return TracedComputation(
            execution.seconds,
            tuple(map(self._core_span, execution.spans)),
            self._transfers(execution.copies),
            self._transfers(execution.collectives),
        )

    def _core_span(self, span: timeline.Span) -> CoreSpan:
        return CoreSpan(
            instruction=self._index(span.instruction),
            start=span.start,
            seconds=span.busy,
            waiting=span.waiting,
            rounds=span.instruction.rounds,
            calls=span.calls,
        )

    def _transfers(
        self, transfers: Iterable[timeline.Transfer]
    ) -> tuple[Transfer, ...]:
        return tuple(
            Transfer(
                self._index(transfer.instruction),
                transfer.start,
                transfer.seconds,
                transfer.axes,
            )
            for transfer in transfers
        )

    def _index(self, instruction: Instruction) -> int:
        """The index of an instruction among those of the trace, to which it is
        added.
        """
        if instruction.name not in self._indices:
            self._indices[instruction.name] = len(self._instructions)
            self._instructions.append(self._describe(instruction))
        return self._indices[instruction.name]

    def _describe(self, instruction: Instruction) -> TracedInstruction:
        work = self._counter.work(instruction)
        return TracedInstruction(
            name=instruction.name,
            operation=instruction.operation,
            kind=work.kind,
            shape=instruction.type,
            module=code_origins.module(self._program, instruction),
            source=self._source_index(code_origins.source(self._program, instruction)),
            hbm_bytes=work.hbm_bytes,
            flops=work.flops,
        )

    def _source_index(self, source: Source | None) -> int | None:
        if source is None:
            return None
        return self._sources.setdefault(
            f"{source.file}:{source.line} {source.function}", len(self._sources)
        )
