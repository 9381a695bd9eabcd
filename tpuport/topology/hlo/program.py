"""A compiled program: what runs how often, in which order of computations, and from
which lines of code.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tpuport.topology.compile_report import Source
from tpuport.topology.hlo.array_types import Array
from tpuport.topology.hlo.instructions import (
    Computation,
    Instruction,
    ProgramText,
    all_instructions,
    read_text,
)
from tpuport.topology.hlo.source_lines import Frames
from tpuport.topology.hlo.trip_counts import set_execution_counts
from tpuport.topology.hlo.value_flow import Value, ValueFlow
from tpuport.topology.kernels.kernel_calls import KernelCost

_ASYNC_START: Final = "AsyncCollectiveStart"
# An instruction of these without a line of its own has the line of its first operand,
# which it only moves.
_MOVES: Final = {
    "all-gather", "all-reduce", "all-to-all", "async", "bitcast", "collective-permute", "convert", "copy",
    "reduce-scatter", "reshape", "slice", "transpose",
}  # fmt: skip
# A line that is further away says little of the instruction.
_FARTHEST_LINE: Final = 8

Cost = Callable[[Instruction], float]


class Program:
    """A compiled program.

    Attributes:
        header: the module's attributes, and tables of source lines.
        computations: by name; a computation comes before those that call it.
        entry: the name of the computation that is the program.
        instructions: of all computations, in the text's order.
        kernel_costs: by the name of a Pallas kernel, what was counted of one execution.
        skipped_shares: by the name of a product, the share of its FLOPs that it leaves
            out.
    """

    def __init__(self, text: ProgramText) -> None:
        self.header, self.computations, self.entry = text
        self.instructions = tuple(all_instructions(self.computations))
        self.kernel_costs: dict[str, KernelCost] = {}
        self.skipped_shares: dict[str, float] = {}

    @property
    def parameters(self) -> dict[int, Instruction]:
        """The program's own parameters by number."""
        return self.computations[self.entry].parameters

    @property
    def results(self) -> tuple[Array, ...]:
        """The arrays that the program returns."""
        return self.computations[self.entry].root.arrays

    @property
    def kernels(self) -> list[Instruction]:
        """The Pallas kernels, and those that the compiler has made by itself."""
        return [
            instruction for instruction in self.instructions if instruction.is_kernel
        ]

    @functools.cached_property
    def _frames(self) -> Frames:
        return Frames(self.header)

    @functools.cached_property
    def _line_flow(self) -> ValueFlow:
        return ValueFlow(self.computations, _moved_operands)

    def source(self, instruction: Instruction) -> Source | None:
        """The line of the model's code, or the user's, that an instruction comes from.

        If the compiler does not say it, that of the operand which the instruction
        moves, or of a fusion's result.
        """
        # The elements of a tuple or a loop may come from several lines, where the steps
        # end.
        for step in itertools.islice(
            self._line_flow.steps_back(Value(instruction)), _FARTHEST_LINE
        ):
            if step.instruction.frame is not None:
                return self._frames.source(step.instruction.frame)
            # An argument of a fusion comes from other code than the fusion.
            if step.instruction.operation == "parameter":
                return None
        return None

    @functools.cached_property
    def callers(self) -> dict[str, Instruction]:
        """By computation, the fusion or the asynchronous operation that it is the
        inside of.
        """
        return {
            name: caller
            for caller in self.instructions
            for name in caller.calls.get("calls", ())
        }

    @functools.cached_property
    def loop_bodies(self) -> frozenset[str]:
        """The computations that are bodies of loops."""
        return frozenset(
            name
            for caller in self.instructions
            for name in caller.calls.get("body", ())
        )

    @functools.cached_property
    def _split_channels(self) -> set[str]:
        """Channels of the collectives that one fusion starts, and others carry on and
        end.
        """
        # The three parts of a split collective are in different fusions, and have one
        # channel.
        starts = [
            instruction
            for instruction in self.instructions
            if instruction.target == _ASYNC_START
        ]
        started = itertools.chain.from_iterable(map(self.operands, starts))
        return {instruction.channel for instruction in started} - {""}

    def stage(self, instruction: Instruction) -> str | None:
        """The part of a collective that its fusion does, if several do it bit by bit:
        "start" or "later".

        None for a collective that one instruction does, and for anything else.
        """
        if not instruction.is_fused or instruction.channel not in self._split_channels:
            return None
        if _ASYNC_START in {user.target for user in self.users(instruction)}:
            return "start"
        return "later"

    def users(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that read an instruction's result."""
        return self.computations[instruction.computation].users.get(
            instruction.name, []
        )

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results an instruction reads."""
        return self.computations[instruction.computation].operands(instruction)

    def operand_arrays(self, instruction: Instruction) -> list[Array]:
        """The arrays that an instruction reads, in the order of its operands."""
        return [
            array for operand in self.operands(instruction) for array in operand.arrays
        ]

    def fused_computation(self, instruction: Instruction) -> Computation | None:
        """The inside of a fusion; None for anything else."""
        if instruction.operation != "fusion":
            return None
        [name] = instruction.calls["calls"]
        return self.computations.get(name)

    def total(self, cost: Cost, *, counts_rounds: bool = True) -> float:
        """The sum over what a step executes; of a conditional, the branch that costs
        most.

        Args:
            cost: of one execution of an instruction, without the computations that it
                calls.
            counts_rounds: False counts the body of a loop once.
        """
        return self._computation_costs(cost, counts_rounds)[self.entry]

    def executed_instructions(self, cost: Cost) -> list[Instruction]:
        """The instructions of a step, also those in fusions; of a conditional, the
        branch that costs most.
        """
        costs = self._computation_costs(cost)
        executed = {self.entry}
        # Callers come after what they call, so that the last computation is the first
        # whose callees are known.
        for name, computation in reversed(self.computations.items()):
            if name not in executed:
                continue
            for instruction in computation.instructions:
                callees = instruction.callees
                if instruction.operation == "conditional":
                    callees = (max(callees, key=costs.__getitem__),)
                executed.update(callees)
        return [
            instruction
            for instruction in self.instructions
            if instruction.computation in executed
        ]

    def _computation_costs(
        self, cost: Cost, counts_rounds: bool = True
    ) -> dict[str, float]:
        """By computation, what one run of it costs together with all that it calls."""
        # A fragment may name computations that it does not have: they cost nothing.
        costs: dict[str, float] = collections.defaultdict(float)
        # What a computation calls comes before it.
        for name, computation in self.computations.items():
            for instruction in computation.instructions:
                costs[name] += cost(instruction)
                callee_costs = [costs[callee] for callee in instruction.callees]
                if instruction.operation == "conditional":
                    costs[name] += max(callee_costs)
                elif counts_rounds:
                    costs[name] += instruction.rounds * sum(callee_costs)
                else:
                    costs[name] += sum(callee_costs)
        return costs


def parse(text: str) -> Program:
    """The program whose text `jax.stages.Compiled.as_text` gave."""
    program_text = read_text(text)
    set_execution_counts(program_text.computations, program_text.entry)
    return Program(program_text)


def square_arrays(instructions: Iterable[Instruction], minimum: int) -> list[Array]:
    """Arrays with two dimensions of at least `minimum`, also in fusions: what a matrix
    of scores would be.
    """
    arrays = {
        array.bare for instruction in instructions for array in instruction.arrays
    }
    return sorted(
        array for array in arrays if sum(extent >= minimum for extent in array.dims) > 1
    )


def _moved_operands(
    instruction: Instruction, operands: Sequence[Instruction]
) -> Sequence[Instruction]:
    if instruction.kind in _MOVES:
        return operands[:1]
    # What is written into an array says more of the result than the array does.
    if instruction.operation == "dynamic-update-slice":
        return operands[1:2]
    return ()
