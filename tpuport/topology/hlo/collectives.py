"""What the devices send each other: a program's collectives, over axes of the mesh, by the line they come from."""

import dataclasses
from typing import Final

from jax.sharding import Mesh

from tpuport.topology.compile_report import Collective, Source
from tpuport.topology.hlo.groups import axes, groups
from tpuport.topology.hlo.program import Instruction, Program
<<<<<<< HEAD:tpuport/topology/hlo/exchange.py
from tpuport.topology.hlo.shapes import Array
=======
from tpuport.topology.hlo.array_types import Array
from tpuport.topology.report import Collective, Source
>>>>>>> 996991f (Name the modules and functions of hlo and kernels by their subjects):tpuport/topology/hlo/collectives.py

KINDS: Final = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip
_SOME: Final = 0.5  # of a byte: a branch that sends nothing but empty arrays still sends


def kind_of(instruction: Instruction) -> str | None:
    """Which kind of collective an instruction is or starts; None for all others."""
    kind = instruction.operation.removesuffix("-start")
    return kind if kind in KINDS else None


def list_collectives(program: Program, mesh: Mesh) -> tuple[Collective, ...]:
    """The collectives of a step, those that leave most bytes on a device first.

    One that combines several arrays is one. Of one that starts here and ends elsewhere, the start counts; one in a
    loop's body counts as often as it runs, and of branches, those of the one that sends most. An all-reduce of which
    each device keeps a part, fused with the taking of it, is the reduce-scatter that the compiler made of it.

    Args:
        program: the compiled one.
        mesh: whose axes are named; that of the program's arguments.
    """
    found: dict[Collective, tuple[int, int, int]] = {}
    for one in program.executed_instructions(lambda one: sent(program, one)):
        kind, nbytes = _kind(program, one), sent(program, one)
        if kind is None or not nbytes:
            continue
        members = groups(one.attributes, mesh.devices.size)
        over = axes(members, mesh, whole=kind != "collective-permute")
        key = Collective(kind, over, max(map(len, members)), 0, 0, _source(program, one))
        sums = found.get(key, (0, 0, 0))
        added = one.times, one.times * int(nbytes), one.times * _is_beside(program, one)
        found[key] = (sums[0] + added[0], sums[1] + added[1], sums[2] + added[2])
    made = (
        dataclasses.replace(key, count=count, nbytes=nbytes, overlapped=beside)
        for key, (count, nbytes, beside) in found.items()
    )
    return tuple(sorted(made, key=lambda one: (-one.nbytes, one.kind, one.axes, -one.count, str(one.source))))


def _kind(program: Program, one: Instruction) -> str | None:
    kind = kind_of(one)
    return "reduce-scatter" if kind == "all-reduce" and _kept(program, one) else kind


def sent(program: Program, instruction: Instruction) -> float:
    """Bytes that one execution leaves on a device, if it is a collective."""
    if kind_of(instruction) is None or program.stage(instruction) == "later":
        return 0.0
    made = _kept(program, instruction) or instruction.results
    return _SOME + sum(array.nbytes for array in made)


def _kept(program: Program, one: Instruction) -> tuple[Array, ...]:
    """Of an all-reduce of which the fusion that it stands in takes slices only: those."""
    if not one.is_fused or one.operation != "all-reduce":
        return ()
    computation = program.computations[one.computation]
    name, users = one.name, computation.users.get(one.name, [])
    while len(users) == 1 and users[0].operation == "bitcast":
        name, users = users[0].name, computation.users.get(users[0].name, [])
    if not all(user.operation == "dynamic-slice" and user.operands[0] == name for user in users):
        return ()
    return tuple(array for user in users for array in user.results)


def _is_beside(program: Program, one: Instruction) -> bool:
    """Whether it is started here and ended elsewhere."""
    caller = program.callers.get(one.computation)
    if one.operation.endswith("-start") or program.stage(one) == "start":
        return True
    return caller is not None and caller.operation.endswith("-start")


def _source(program: Program, one: Instruction) -> Source | None:
    source, caller = program.source(one), program.callers.get(one.computation)
    return program.source(caller) if source is None and caller is not None else source
