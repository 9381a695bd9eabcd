"""Reading a program's text whole."""

from collections.abc import Iterable

from tpuport.topology.hlo import loops, program
from tpuport.topology.hlo.program import Instruction, Program
from tpuport.topology.hlo.shapes import Array


def parse(text: str) -> Program:
    """The program of a text that `jax.stages.Compiled.as_text` gave."""
    made = program.read(text)
    loops.assign(made)
    return made


def instructions(text: str) -> tuple[Instruction, ...]:
    """The instructions of a program, in its order."""
    return parse(text).instructions


def square(program: Program | Iterable[Instruction], least: int) -> list[Array]:
    """Arrays with two dimensions of at least `least`, in fusions too: what a matrix of attention's scores would be."""
    given = program.instructions if isinstance(program, Program) else program
    found = {array.bare for one in given for array in one.arrays}
    return sorted(array for array in found if sum(size >= least for size in array.dims) > 1)
