"""Which of a program's collectives move what, and for which operation."""

from collections.abc import Iterable, Iterator

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.hlo import Instruction


def collectives(evidence: Evidence, *kinds: str) -> Iterator[Instruction]:
    """The instructions of these kinds; of one that starts here and ends elsewhere, the start."""
    program = evidence.program
    if program is None:
        return iter(())
    return (
        one
        for one in program.instructions
        if one.operation.removesuffix("-start") in kinds and program.stage(one) != "later"
    )


def made_for(instruction: Instruction) -> str:
    """The jax primitive that an instruction was made for: "dot_general", or an empty string."""
    return instruction.op_name.rpartition("/")[2].partition("[")[0]


def sent(instructions: Iterable[Instruction]) -> int:
    """Bytes that collectives leave on a device in a step."""
    return int(sum(one.times * array.nbytes for one in instructions for array in one.results))


def times(instructions: Iterable[Instruction]) -> int:
    """How often a step executes them."""
    return int(sum(one.times for one in instructions))
