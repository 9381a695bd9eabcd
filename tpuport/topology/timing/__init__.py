"""How long a step of a compiled program takes, instruction by instruction, by the
schedules that the compiler wrote.

`time_program` gives the timeline of a program, its profile, and the trace that people
look at.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tpuport.hardware import GENERATIONS
from tpuport.hardware.schedules import KernelSchedule
from tpuport.topology import roofline
from tpuport.topology.compile_report import Profile
from tpuport.topology.hlo.program import Program
from tpuport.topology.step_trace import StepTrace
from tpuport.topology.timing.instruction_work import KINDS, WorkCounter
from tpuport.topology.timing.profile import span_seconds, summarize
from tpuport.topology.timing.timeline import Span, Timeline, walk
from tpuport.topology.timing.trace_building import build_trace

__all__ = ["KINDS", "Span", "Timeline", "Timing", "span_seconds", "time_program"]


class Timing(NamedTuple):
    """The time of a step: its instructions, what they amount to, and both in plain
    values with what goes on beside.
    """

    timeline: Timeline
    profile: Profile
    trace: StepTrace


def time_program(
    program: Program,
    schedules: Mapping[str, KernelSchedule],
    generation: str,
    topology: str,
    mesh: Any,
) -> Timing:
    """When each instruction of a step runs, and what that amounts to.

    Args:
        program: with the costs of its kernels applied.
        schedules: of its kernels, by name; the compiler's estimates serve for those
            that are not there.
        generation: a key of `hardware.GENERATIONS`; topology: the slice's full name.
        mesh: the jax Mesh of the program's arguments.
    """
    hardware = GENERATIONS[generation]
    sizes = {str(axis): int(size) for axis, size in mesh.shape.items()}
    rings = roofline.layout(hardware, sizes, topology, mesh)
    counter = WorkCounter(program, schedules, hardware, mesh, rings)
    timeline = walk(program, counter, hardware)
    return Timing(
        timeline,
        summarize(program, timeline, hardware),
        build_trace(program, counter, timeline),
    )
