"""The cycles of each instruction of a compiled program, by the schedules that the
compiler wrote for its kernels.

A kernel here is what the core executes for one instruction: a fusion, a copy, a Pallas
kernel. Its schedule is written once for all instructions that are the same but for
their names. Without a schedule there is the estimate by which the compiler chose the
blocks of a fusion: it is about right for products, and much too high for elementwise
work.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tpuport.hardware.schedules import KernelSchedule
from tpuport.topology.hlo.array_types import search_group
from tpuport.topology.hlo.instructions import Computation, Instruction
from tpuport.topology.hlo.program import Program

_ESTIMATE: Final = re.compile(r'"estimated_cycles":"(\d+)"')
_WINDOWS: Final = re.compile(r'"window_config":(\{.*?\})')
_METADATA: Final = re.compile(r", (?:metadata|backend_config)=\{.*", re.DOTALL)
_NAME: Final = re.compile(r"%[\w.-]+")
_COMMENT: Final = re.compile(r"/\*.*?\*/")


class KernelCycles(NamedTuple):
    """What one execution of an instruction takes of the core.

    Attributes:
        cycles: of one execution.
        copies: between memories that it starts.
        source: "schedule" or "compiler's estimate".
        exact: whether the schedule tells the number, whatever the data.
    """

    cycles: int
    copies: int
    source: str
    exact: bool = True


def count_cycles(
    program: Program, schedules: Mapping[str, KernelSchedule]
) -> dict[str, KernelCycles]:
    """By the name of each instruction that the core executes, its cycles.

    Instructions without a schedule or an estimate are left out: they are scalar, or
    take no time of the core.
    """
    forms = _CanonicalForms(program)
    instructions = [
        instruction for instruction in program.instructions if not instruction.is_fused
    ]
    by_form = {
        forms.of(instruction): schedules[instruction.name]
        for instruction in instructions
        if instruction.name in schedules
    }
    cycles = {}
    for instruction in instructions:
        schedule = schedules.get(instruction.name) or by_form.get(forms.of(instruction))
        if schedule is not None:
            cycles[instruction.name] = KernelCycles(
                schedule.cycles, schedule.copies, "schedule", schedule.exact
            )
            continue
        estimate = search_group(_ESTIMATE, instruction.attributes)
        if estimate:
            cycles[instruction.name] = KernelCycles(
                int(estimate), 0, "compiler's estimate", exact=False
            )
    return cycles


class _CanonicalForms:
    """Instructions and computations as text without names and source lines: equal if
    their code is.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._computations: dict[str, str] = {}

    def of(self, instruction: Instruction) -> str:
        """An instruction, the layouts of its operands, and what it calls."""
        operands = [operand.type for operand in self._program.operands(instruction)]
        text = _METADATA.sub("", instruction.attributes)
        windows = search_group(_WINDOWS, instruction.attributes)
        callees = list(map(self._computation, instruction.callees))
        return "\n".join(
            [
                instruction.type,
                *operands,
                windows,
                _NAME.sub("%", _COMMENT.sub("", text)),
                *callees,
            ]
        )

    def _computation(self, name: str) -> str:
        if name not in self._computations and name in self._program.computations:
            instructions = _in_order_of_use(self._program.computations[name])
            # Operands by their position, which does not depend on names.
            positions = {
                instruction.name: str(index)
                for index, instruction in enumerate(instructions)
            }
            self._computations[name] = "\n".join(
                f"{list(map(positions.get, instruction.operands))}{self._inner_form(instruction)}"
                for instruction in instructions
            )
        return self._computations.get(name, "")

    def _inner_form(self, instruction: Instruction) -> str:
        text = _METADATA.sub("", instruction.attributes)
        callees = list(map(self._computation, instruction.callees))
        return "\n".join(
            [instruction.type, _NAME.sub("%", _COMMENT.sub("", text)), *callees]
        )


def _in_order_of_use(computation: Computation) -> list[Instruction]:
    """The instructions of which the result is made, each after its operands.

    The text of a program has independent ones, such as the two parameters of a
    reduction, in any order.
    """
    ordered: dict[str, Instruction] = {}
    waiting = [computation.root]
    while waiting:
        instruction = waiting[-1]
        operands = [
            computation.named[name]
            for name in instruction.operands
            if name in computation.named and name not in ordered
        ]
        if operands:
            waiting.extend(reversed(operands))
            continue
        ordered.setdefault(instruction.name, instruction)
        waiting.pop()
    return list(ordered.values())
