"""What a program reads from HBM and writes to it, and the arrays that it keeps there,
by its text.

The compiler's own count, "bytes accessed", has what is copied from HBM into VMEM once
for the copy and again wherever it is used from there. Here only an array whose layout
puts it in HBM counts, with the padding of its tiles.
"""

import collections
import functools
from collections.abc import Collection, Sequence
from typing import Final

from tpuport.topology.compile_report import Buffer, Source
from tpuport.topology.hlo.array_types import HBM, Array
from tpuport.topology.hlo.instructions import Computation, Instruction, Use
from tpuport.topology.hlo.kernel_costs import kernel_bytes
from tpuport.topology.hlo.program import Program
from tpuport.topology.hlo.value_flow import Value, ValueFlow

# They name arrays that something else makes, or run computations that count for
# themselves.
_FREE: Final = {
    "parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "constant", "after-all",
    "optimization-barrier", "async-start", "async-update", "add-dependency", "partition-id", "replica-id", "domain",
}  # fmt: skip
# Custom calls that give an operand's array another name.
_VIEWING_TARGETS: Final = {
    "ConcatBitcast",
    "AssumeGatherIndicesInBound",
    "Sharding",
    "LayoutConstraint",
}
_SLICES: Final = {"slice", "dynamic-slice", "gather"}
# They write a part of an array, and which operand the part is.
_UPDATES: Final = {"dynamic-update-slice": 1, "scatter": 2}


def count_hbm_bytes(program: Program) -> float:
    """Bytes that one device reads from HBM and writes to it in a step.

    The operands of each instruction are read and its results are written, as far as
    they are in HBM. Of a fusion only what it slices out of an operand counts, and only
    what it writes into an operand that it changes in place. A Pallas kernel has what
    was counted of it, or else its own estimate. A loop's body counts as often as it
    runs; of branches, the one that moves most.
    """
    return program.total(functools.partial(instruction_bytes, program))


def instruction_bytes(program: Program, instruction: Instruction) -> float:
    """Bytes of HBM that one execution of an instruction reads and writes."""
    # A prefetch counts in the step that uses it, and a collective in the fusion that
    # starts it.
    if (
        not stores_arrays(instruction)
        or instruction.target == "AllocateBuffer"
        or _is_prefetch_for_next_step(program, instruction)
        or _ends_collective(program, instruction)
    ):
        return 0.0
    nbytes = kernel_bytes(program, instruction)
    if nbytes is None:
        nbytes = _read_bytes(program, instruction) + _written_bytes(
            program, instruction
        )
    return float(nbytes)


def stores_arrays(instruction: Instruction) -> bool:
    """Whether it puts arrays that it computes or copies into memory: not inside of a
    fusion, nor as another name.
    """
    return not (
        instruction.is_fused
        or instruction.operation in _FREE
        or instruction.operation.endswith(("-done", "-update"))
        or instruction.target in _VIEWING_TARGETS
    )


def _is_prefetch_for_next_step(program: Program, instruction: Instruction) -> bool:
    """Whether a copy is what the next step finds in VMEM, and the step itself does not
    look at it.

    The step has another copy, for the case that the last step left nothing there; one
    of the two is done.
    """
    if instruction.operation != "copy-start":
        return False
    return not any(
        end.is_root or program.users(end) for end in program.users(instruction)
    )


def _ends_collective(program: Program, instruction: Instruction) -> bool:
    """Whether a fusion ends a collective that another started and carried out."""
    inside = program.fused_computation(instruction)
    return inside is not None and inside.root.target == "AsyncCollectiveDone"


def _read_bytes(program: Program, instruction: Instruction) -> int:
    """Bytes of HBM that are read of all operands, each once however often it is
    named.
    """
    operands = dict.fromkeys(program.operands(instruction))
    return sum(read_bytes(program, instruction, operand) for operand in operands)


def read_bytes(program: Program, instruction: Instruction, operand: Instruction) -> int:
    """Bytes of HBM that one execution of an instruction reads of one of its
    operands.
    """
    whole = sum(array.hbm_nbytes for array in operand.arrays)
    use = Use(instruction, instruction.positions(operand.name))
    return min(whole, _read_by_user(program, use, whole))


def _read_by_user(program: Program, use: Use, whole: int) -> int:
    """What an instruction reads of an operand that has `whole` bytes."""
    inside = program.fused_computation(use.user)
    if inside is None:
        return _sliced_bytes(use, whole)
    parameters = [inside.parameters[position] for position in use.positions]
    return sum(
        _inner_bytes(program, inside, parameter, whole) for parameter in parameters
    )


def _sliced_bytes(use: Use, whole: int) -> int:
    """What an instruction other than a fusion reads: a slice, nothing of what it
    changes, or all.
    """
    if use.positions == (0,) and use.user.kind in _SLICES:
        return _tiled_bytes(use.user.results)
    if use.positions == (0,) and use.user.kind in _UPDATES:
        return 0
    return whole


def _inner_bytes(
    program: Program, computation: Computation, value: Instruction, whole: int
) -> int:
    """What the inside of a fusion reads of one of its values; `whole` bytes at most."""
    # It is handed back by a fusion that changes nothing in place: it has to be copied.
    if value.is_root:
        return whole
    uses = computation.uses(value.name)
    return min(whole, sum(_use_bytes(program, computation, use, whole) for use in uses))


def _use_bytes(program: Program, computation: Computation, use: Use, whole: int) -> int:
    user = use.user
    # A collective that goes on has read its operand where it started.
    if program.stage(user) == "later":
        return 0
    # A fusion may hand its operands back, beside what it computes.
    if (
        user.operation == "tuple"
        and user.is_root
        and program.callers[computation.name].aliased_results
    ):
        return 0
    if user.operation in _UPDATES and not _is_only_returned(computation, user):
        return whole
    if _is_retiled_view(program, user):
        return _inner_bytes(program, computation, user, whole)
    return _read_by_user(program, use, whole)


def _is_retiled_view(program: Program, instruction: Instruction) -> bool:
    """Whether an instruction in a fusion is its operand in other tiles that have the
    same bytes in the same order.
    """
    inside = program.fused_computation(instruction)
    return (
        inside is not None
        and len(instruction.aliased_results) == 1
        and inside.root.operation == "copy"
        and inside.operands(inside.root)[0].operation == "parameter"
    )


def _is_only_returned(computation: Computation, instruction: Instruction) -> bool:
    """Whether a value is a result of its computation and nothing else."""
    uses = computation.uses(instruction.name)
    return all(
        use.user.is_root and use.user.operation in ("tuple", "bitcast") for use in uses
    )


def _written_bytes(program: Program, instruction: Instruction) -> int:
    """Bytes that go to HBM; of a result that is an operand changed in place, those of
    the change.
    """
    updates = _in_place_updates(program, instruction)
    unchanged = _unchanged_results(program, instruction)
    results = _results_in_hbm(instruction, unchanged)
    return sum(
        _tiled_bytes(updates.get(index, (array,))) for index, array in results.items()
    )


def _results_in_hbm(
    instruction: Instruction, left_out: Collection[int]
) -> dict[int, Array]:
    """The arrays that it computes in HBM, by their indices, without some."""
    return {
        index: array
        for index, array in enumerate(instruction.results)
        if array.space == HBM and index not in left_out
    }


def _unchanged_results(program: Program, instruction: Instruction) -> set[int]:
    """Indices of results that are operands: as they were, or changed by a collective
    that counts where it starts.
    """
    inside = program.fused_computation(instruction)
    if inside is None:
        return set()
    if inside.root.operation == "custom-call":
        return instruction.aliased_results
    unchanged = {
        index
        for index, result in enumerate(inside.results)
        if result.operation == "parameter" or program.stage(result) == "later"
    }
    return unchanged & instruction.aliased_results


def _in_place_updates(
    program: Program, instruction: Instruction
) -> dict[int, tuple[Array, ...]]:
    """By the index of each result that is an operand changed in place, the arrays that
    are written into it.
    """
    operands = program.operands(instruction)
    update = _UPDATES.get(instruction.kind, len(operands))
    if update < len(operands):
        return {0: operands[update].arrays}
    inside = program.fused_computation(instruction)
    # A result that is a tuple of tuples cannot be matched, and counts as computed.
    if inside is None or len(inside.results) != len(instruction.results):
        return {}
    updates = {
        index: _inner_update(program, inside, result)
        for index, result in enumerate(inside.results)
    }
    return {index: arrays for index, arrays in updates.items() if arrays}


def _inner_update(
    program: Program, computation: Computation, result: Instruction
) -> tuple[Array, ...]:
    """What a fusion writes into the operand of which this is the result."""
    result = computation.skip_bitcasts(result)
    if result.operation == "fusion":
        return _in_place_updates(program, result).get(0, ())
    if result.operation not in _UPDATES:
        return ()
    operands = computation.operands(result)
    # An update of what the fusion itself computes is not in place.
    if computation.skip_bitcasts(operands[0]).operation != "parameter":
        return ()
    return operands[_UPDATES[result.operation]].arrays


def _tiled_bytes(arrays: Sequence[Array]) -> int:
    return sum(array.tiled_nbytes for array in arrays)


def list_buffers(program: Program, limit: int) -> tuple[Buffer, ...]:
    """The largest temporaries in HBM, in one entry those of a shape that an opcode
    makes for a line of code.

    Arguments, results of the program and what is changed in place are left out, as they
    are in memory anyway.

    Args:
        program: the compiled one.
        limit: how many entries; the largest come first.
    """
    returned = _returned_instructions(program)
    sizes: dict[tuple[str, str, Source | None], list[int]] = collections.defaultdict(
        list
    )
    for instruction in program.instructions:
        if instruction in returned or not stores_arrays(instruction):
            continue
        for array in _temporaries(program, instruction):
            sizes[str(array), instruction.kind, program.source(instruction)].append(
                array.tiled_nbytes
            )
    # Arrays of one shape may have other tiles, and so other sizes: the largest is
    # reported.
    buffers = [
        Buffer(shape, max(nbytes), operation, len(nbytes), source)
        for (shape, operation, source), nbytes in sizes.items()
    ]
    return tuple(sorted(buffers, key=_report_order)[:limit])


def _report_order(buffer: Buffer) -> tuple[object, ...]:
    return -buffer.nbytes, buffer.shape, buffer.operation, str(buffer.source)


def _temporaries(program: Program, instruction: Instruction) -> list[Array]:
    """Results in HBM that are not operands changed in place."""
    if _ends_collective(program, instruction):
        return []
    in_place = (
        instruction.aliased_results | _in_place_updates(program, instruction).keys()
    )
    return list(_results_in_hbm(instruction, in_place).values())


def _returned_instructions(program: Program) -> set[Instruction]:
    """The instructions that make what the program returns, or what a loop or an update
    changes into that.
    """
    root = program.computations[program.entry].root
    # The result of a loop is in the memory of what the loop starts with, so that its
    # body need not be followed.
    flow = ValueFlow(program.computations, _operand_in_memory, looks_inside=False)
    return {value.instruction for value in flow.trace([Value(root)])}


def _operand_in_memory(
    instruction: Instruction, operands: Sequence[Instruction]
) -> Sequence[Instruction]:
    """The operand in whose memory a result is."""
    if instruction.operation in ("bitcast", "dynamic-update-slice"):
        return operands[:1]
    return ()
