"""Whose code an instruction is: the module of the model, and the line of code."""

from typing import Final

from tpuport.topology.compile_report import Source
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.module_scopes import module_path

# A user that is further away says little of an instruction.
_MOST_OWNERS: Final = 8


def module(program: Program, instruction: Instruction) -> str:
    """The module whose code an instruction is, or else the one whose code uses its
    result; empty if there is none.
    """
    named = (module_path(owner.op_name) for owner in _owners(program, instruction))
    return next(filter(None, named), "")


def source(program: Program, instruction: Instruction) -> Source | None:
    """The line of code of an instruction, or else of what uses its result."""
    sources = map(program.source, _owners(program, instruction))
    return next((source for source in sources if source is not None), None)


def _owners(program: Program, instruction: Instruction) -> list[Instruction]:
    """An instruction, then those that use its result, the nearest first: the compiler's
    own copies have no names.
    """
    owners = [instruction]
    for owner in owners:
        if len(owners) >= _MOST_OWNERS:
            break
        owners.extend(
            user
            for user in program.users(owner)
            if user not in owners and not user.is_root
        )
    return owners[:_MOST_OWNERS]
