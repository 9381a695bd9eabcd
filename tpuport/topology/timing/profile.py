"""A profile of a compiled program: its timeline summed up by kind, module, line and
instruction.
"""

import collections
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

from tpuport.base.mappings import group_by
from tpuport.hardware import Generation
from tpuport.topology.compile_report import (
    InstructionTime,
    LineTime,
    ModuleTime,
    Profile,
)
from tpuport.topology.hlo.program import Program
from tpuport.topology.module_scopes import star_numbers
from tpuport.topology.timing import code_origins
from tpuport.topology.timing.instruction_work import COLLECTIVES, KINDS, WAITING
from tpuport.topology.timing.timeline import Span, Timeline

_MOST_INSTRUCTIONS: Final = 10

Key = TypeVar("Key", bound=Hashable)


def summarize(program: Program, timeline: Timeline, hardware: Generation) -> Profile:
    """The profile of one step on one device."""
    leaves = timeline.leaves
    modules = _group(leaves, lambda span: _module(program, span))
    lines = _group(leaves, lambda span: code_origins.source(program, span.instruction))
    return Profile(
        seconds=timeline.seconds,
        kinds=_kind_seconds(leaves),
        modules=tuple(
            ModuleTime(name, _seconds(spans), _kind_seconds(spans))
            for name, spans in modules
        ),
        lines=tuple(
            LineTime(source, _seconds(spans), _kind_seconds(spans))
            for source, spans in lines
        ),
        instructions=_largest(program, leaves, hardware),
        matrix_units=float(
            sum(span.times * span.work.product_seconds for span in leaves)
        ),
        schedule_share=_schedule_share(leaves),
        clock=hardware.clock,
    )


def span_seconds(span: Span) -> float:
    """Seconds of a step that an instruction takes, with those in which the core waits
    for it.
    """
    return span.times * (span.busy + span.waiting)


def _module(program: Program, span: Span) -> str:
    """The module whose code a span is, the same for all blocks."""
    return star_numbers(code_origins.module(program, span.instruction))


def _seconds(spans: Iterable[Span]) -> float:
    return float(sum(map(span_seconds, spans)))


def _kind_seconds(spans: Iterable[Span]) -> dict[str, float]:
    seconds: dict[str, float] = collections.defaultdict(float)
    for span in spans:
        seconds[span.work.kind] += span.times * span.busy
        seconds[WAITING] += span.times * span.waiting
    return {kind: seconds[kind] for kind in KINDS if seconds[kind]}


def _group(
    spans: Iterable[Span], key: Callable[[Span], Key]
) -> list[tuple[Key, list[Span]]]:
    """Spans by key, the groups that take longest first."""
    groups = group_by(spans, key).items()
    return sorted(groups, key=lambda group: (-_seconds(group[1]), str(group[0])))


def _largest(
    program: Program, leaves: Iterable[Span], hardware: Generation
) -> tuple[InstructionTime, ...]:
    def form(span: Span) -> tuple[Hashable, ...]:
        """The same for instructions of all blocks that are written out."""
        instruction = span.instruction
        source = code_origins.source(program, instruction)
        return (
            instruction.operation,
            span.work.kind,
            instruction.type,
            _module(program, span),
            source,
        )

    groups = [spans for _, spans in _group(leaves, form)[:_MOST_INSTRUCTIONS]]
    return tuple(_instruction_time(program, spans, hardware) for spans in groups)


def _instruction_time(
    program: Program, spans: Sequence[Span], hardware: Generation
) -> InstructionTime:
    longest = max(spans, key=span_seconds)
    instruction, device, seconds = longest.instruction, hardware.device, _seconds(spans)
    flops = sum(span.times * span.work.flops for span in spans)
    nbytes = sum(span.times * span.work.hbm_bytes for span in spans)
    return InstructionTime(
        name=instruction.name, operation=instruction.operation, kind=longest.work.kind, shape=instruction.type,
        times=sum(span.times for span in spans), seconds=seconds, bound=_bound(longest, hardware),
        mfu=flops / seconds / device.bf16, hbm=nbytes / seconds / device.hbm_bandwidth,
        module=_module(program, longest), source=code_origins.source(program, instruction),
    )  # fmt: skip


def _bound(span: Span, hardware: Generation) -> str:
    """What an instruction takes longest for."""
    work = span.work
    if span.waiting > span.busy:
        # For what something else started.
        return "links" if work.kind == COLLECTIVES else "memory"
    bounds = {
        "core": work.core_seconds,
        "memory": work.hbm_bytes / hardware.device.hbm_bandwidth,
        "links": work.link_seconds,
    }
    return max(bounds, key=bounds.__getitem__)


def _schedule_share(leaves: Iterable[Span]) -> float:
    """The part of the core's cycles that schedules tell."""
    cycles: collections.Counter[str] = collections.Counter()
    for span in leaves:
        if span.work.cycles is not None:
            cycles[span.work.cycles.source] += span.times * span.work.cycles.cycles
    if not cycles:
        return 0.0
    return cycles["schedule"] / cycles.total()
