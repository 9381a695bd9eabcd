"""Reading a program's text whole."""

from collections.abc import Iterable

from tpuport.topology.hlo import program, trip_counts
from tpuport.topology.hlo.array_types import Array
from tpuport.topology.hlo.program import Instruction, Program


def parse(text: str) -> Program:
    """The program of a text that `jax.stages.Compiled.as_text` gave."""
    parsed = program.read(text)
    trip_counts.assign(parsed)
    return parsed


def square_arrays(instructions: Iterable[Instruction], minimum: int) -> list[Array]:
    """Arrays with two dimensions of at least `minimum`, in fusions too: what a matrix of attention's scores would be."""
    arrays = {array.bare for instruction in instructions for array in instruction.arrays}
    return sorted(array for array in arrays if sum(size >= minimum for size in array.dims) > 1)
