"""What a program reads from HBM and writes to it, by its text.

The compiler's own count, "bytes accessed", takes what is copied from HBM into VMEM once for the copy and again wherever
it is used from there. Here only an array whose layout puts it in HBM counts, as its tiles pad it.
"""

import functools
from typing import Final

from tpuport.topology.hlo.kernel_costs import is_kernel, kernel_bytes
from tpuport.topology.hlo.program import Computation, Instruction, Program
from tpuport.topology.hlo.array_types import HBM, Array

# They name arrays that something else has made or will make, or run computations that count for themselves.
FREE: Final = {
    "parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "constant", "after-all",
    "optimization-barrier", "async-start", "async-update", "add-dependency", "partition-id", "replica-id", "domain",
}  # fmt: skip
_FREE_CALLS: Final = tuple(
    f'custom_call_target="{name}"'
    for name in ("ConcatBitcast", "AssumeGatherIndicesInBound", "Sharding", "LayoutConstraint")
)
_ALLOCATES: Final = 'custom_call_target="AllocateBuffer"'
_DONE: Final = 'custom_call_target="AsyncCollectiveDone"'
_TAKE_PARTS: Final = {"slice", "dynamic-slice", "gather"}
_PUT_PARTS: Final = {"dynamic-update-slice": 1, "scatter": 2}  # and which operand is put


def count_hbm_bytes(program: Program) -> float:
    """Bytes that one device reads from HBM and writes to it in a step.

    Operands of each instruction are read and its results are written, where they lie in HBM; of a fusion only what it
    slices out of an operand, and only what it puts into one that it changes in place. A Pallas kernel has what was
    counted of it, or else its own estimate where it gives one. A loop's body counts as often as it runs; of branches,
    the one that moves most.
    """
    return program.total(functools.partial(moved, program))


def moved(program: Program, instruction: Instruction) -> float:
    """Bytes of HBM that one execution of an instruction reads and writes."""
    kind = instruction.operation
    if instruction.is_fused or kind in FREE or kind.endswith(("-done", "-update")) or is_view(instruction):
        return 0.0
    if kind == "custom-call" and _ALLOCATES in instruction.attributes:
        return 0.0
    if is_kernel(instruction) and (known := kernel_bytes(program, instruction)) is not None:
        return known
    if kind.endswith("-start") and _is_for_the_next(program, instruction):
        return 0.0
    if kind == "fusion" and ends(program, instruction):
        return 0.0
    return float(sum(_read(program, instruction)) + sum(written(program, instruction)))


def is_view(instruction: Instruction) -> bool:
    """Whether it is a custom call that moves nothing."""
    if instruction.operation != "custom-call":
        return False
    attributes = instruction.attributes
    return any(one in attributes for one in _FREE_CALLS)


def _is_for_the_next(program: Program, start: Instruction) -> bool:
    """Whether a copy is what the next step finds in VMEM: the step itself never looks at it.

    The step has another, for the case that nothing is there; one of the two is done.
    """
    users = program.computations[start.computation].users
    done = users.get(start.name, [])
    return (
        start.operation == "copy-start"
        and bool(done)
        and not any(users.get(one.name) or one.is_root for one in done)
    )


def _read(program: Program, instruction: Instruction) -> list[int]:
    """Bytes that are read of each operand."""
    kind = instruction.operation.removesuffix("-start")
    operands = dict.fromkeys(program.operands(instruction))
    return [
        _taken(program, instruction, kind, one)
        for one in operands
        if any(made.space == HBM for made in one.arrays)
    ]


def _taken(program: Program, instruction: Instruction, kind: str, operand: Instruction) -> int:
    whole = sum(made.tiled_nbytes for made in operand.arrays if made.space == HBM)
    places = [place for place, name in enumerate(instruction.operands) if name == operand.name]
    if kind == "fusion" and (called := program.callee(instruction)):
        parts = [_used(program, called, called.parameters[place].name, whole) for place in places]
        return min(whole, sum(parts))
    if places == [0] and kind in _TAKE_PARTS:
        return min(whole, sum(made.tiled_nbytes for made in instruction.results))
    return 0 if places == [0] and kind in _PUT_PARTS else whole


def _used(program: Program, computation: Computation, name: str, whole: int) -> int:
    """Bytes that a fusion's inside takes of one of its values, which has `whole`."""
    if computation.named[name].is_root:
        return whole
    taken, aliased = 0, _caller_aliases(program, computation)
    for user in computation.users.get(name, ()):
        places = [place for place, operand in enumerate(user.operands) if operand == name]
        if user.operation == "bitcast":
            taken += _used(program, computation, user.name, whole)
        elif user.operation == "fusion" and (called := program.callee(user)):
            taken += sum(_used(program, called, called.parameters[place].name, whole) for place in places)
        elif places == [0] and user.operation in _TAKE_PARTS:
            taken += sum(made.tiled_nbytes for made in user.arrays)
        elif program.stage(user) == "later" or (user.operation == "tuple" and user.is_root and aliased):
            pass
        elif places != [0] or user.operation not in _PUT_PARTS or not _only_returned(computation, user):
            return whole
    return min(taken, whole)


def _caller_aliases(program: Program, computation: Computation) -> bool:
    """Whether the fusion gives some of its operands back."""
    caller = program.callers.get(computation.name)
    return caller is not None and bool(caller.aliased)


def ends(program: Program, instruction: Instruction) -> bool:
    """Whether a fusion ends a collective that another started, and carried out."""
    called = program.callee(instruction)
    return called is not None and called.root.operation == "custom-call" and _DONE in called.root.attributes


def _only_returned(computation: Computation, instruction: Instruction) -> bool:
    """Whether a value is nothing but a result of its computation."""
    if instruction.is_root:
        return True
    users = computation.users.get(instruction.name, ())
    return all(
        (one.operation == "tuple" and one.is_root)
        or (one.operation == "bitcast" and _only_returned(computation, one))
        for one in users
    )


def written(program: Program, instruction: Instruction) -> list[int]:
    """Bytes that go to HBM for each result; of one that is changed in place, those that are put."""
    results, put, given = instruction.results, puts(program, instruction), _given_back(program, instruction)
    if len(put) != len(results):
        put = [None] * len(results)
    return [
        _nbytes(part if part is not None else (whole,))
        for place, (whole, part) in enumerate(zip(results, put, strict=True))
        if whole.space == HBM and place not in given
    ]


def _given_back(program: Program, instruction: Instruction) -> set[int]:
    """Places of results that are operands: unchanged, or changed by a collective that counts where it starts."""
    called = program.callee(instruction) if instruction.operation == "fusion" else None
    if called is None or called.root.operation != "tuple":
        return instruction.aliased if called is not None and called.root.operation == "custom-call" else set()
    made = called.operands(called.root)
    return {
        place
        for place in instruction.aliased
        if place < len(made)
        and (made[place].operation == "parameter" or program.stage(made[place]) == "later")
    }


def _nbytes(made: tuple[Array, ...]) -> int:
    return sum(one.tiled_nbytes for one in made)


def puts(program: Program, instruction: Instruction) -> list[tuple[Array, ...] | None]:
    """For each result that is an operand changed in place, what is put into it; None for one that is made."""
    kind = instruction.operation.removesuffix("-start")
    if kind in _PUT_PARTS:
        operands = program.operands(instruction)
        return [operands[_PUT_PARTS[kind]].arrays] if len(operands) > _PUT_PARTS[kind] else [None]
    called = program.callee(instruction) if kind == "fusion" else None
    if called is None:
        return [None] * len(instruction.results)
    root = called.root
    ends = called.operands(root) if root.operation == "tuple" else [root]
    return [_put(program, called, one) for one in ends]


def _put(program: Program, computation: Computation, end: Instruction) -> tuple[Array, ...] | None:
    """What a fusion puts into its operand, of which `end` is the result."""
    end = _behind(computation, end)
    if end.operation == "fusion":
        inner = puts(program, end)
        return inner[0] if len(inner) == 1 else None
    if end.operation not in _PUT_PARTS:
        return None
    operands = computation.operands(end)
    if (
        len(operands) <= _PUT_PARTS[end.operation]
        or _behind(computation, operands[0]).operation != "parameter"
    ):
        return None
    return operands[_PUT_PARTS[end.operation]].arrays


def _behind(computation: Computation, one: Instruction) -> Instruction:
    """What a value is without bitcasts."""
    while one.operation == "bitcast":
        one = computation.named[one.operands[0]]
    return one
