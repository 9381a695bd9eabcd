"""What the devices send each other: a program's collectives, over axes of the mesh, by
the line they come from.

A program numbers its devices as the mesh has them, in the order of `mesh.devices.flat`,
whatever their own ids are.
"""

import dataclasses
import functools
import itertools
import math
import re
from typing import Final

import numpy as np
from jax.sharding import Mesh

from tpuport.topology.compile_report import Collective, Source
from tpuport.topology.hlo.array_types import Array, parse_numbers, search_group
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program

_KINDS: Final = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "ragged-all-to-all",
    "reduce-scatter",
)  # fmt: skip
# Half a byte more for each collective, so that a branch that sends only empty arrays
# still costs something.
_EMPTY_COST: Final = 0.5
# "[2,4]<=[4,2]T(1,0)": the numbers from 0 in an array of [4,2], transposed, are the
# rows of one of [2,4].
_IOTA: Final = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# Lists, "{{0,1},{2,3}}" or "{0,1}", or nothing, "{}", which is all devices; an iota; or
# axes of a mesh.
_GROUPS: Final = re.compile(
    r"\breplica_groups=(\{\{.*?\}\}|\{\}|\{[\d,]+\}|\[[^ ]*|mesh\[.*?\}(?=,|$))"
)
_PAIRS: Final = re.compile(r"\bsource_target_pairs=\{(\{.*?\}|)\}")
_LIST: Final = re.compile(r"\{([\d,]*)\}")
_MESH_AXIS: Final = re.compile(r"""['"]([^'"]+)['"]=(\d+)""")
_MESH_ORDER: Final = re.compile(
    r"device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\)"
)
# A whole axis, 'a', or a part of it, 'a':(before)size: the middle one of three axes
# that it is split into.
_USED_AXIS: Final = re.compile(r"""['"]([^'"]+)['"](?::\((\d+)\)(\d+))?""")

Groups = list[tuple[int, ...]]


def list_collectives(program: Program, mesh: Mesh) -> tuple[Collective, ...]:
    """The collectives of a step, those that leave most bytes on a device first.

    A collective that combines several arrays is one, and one that is started and ended
    apart counts where it starts. In a loop's body it counts as often as the loop runs;
    of branches, those of the branch that sends most count. An all-reduce that is fused
    with the slicing of its result is the reduce-scatter that the compiler made of it.

    Args:
        program: the compiled one.
        mesh: of the program's arguments; its axes are named.
    """
    # By everything of a collective but its figures.
    sums: dict[Collective, Collective] = {}
    cost = functools.partial(sent_bytes, program)
    for instruction in filter(cost, program.executed_instructions(cost)):
        times = instruction.times
        key = _describe(program, instruction, mesh)
        total = sums.get(key, key)
        sums[key] = dataclasses.replace(
            total,
            count=total.count + times,
            nbytes=total.nbytes + times * int(cost(instruction)),
            overlapped=total.overlapped + times * _is_overlapped(program, instruction),
        )
    return tuple(sorted(sums.values(), key=_report_order))


def _report_order(collective: Collective) -> tuple[object, ...]:
    source = str(collective.source)
    return (
        -collective.nbytes,
        collective.kind,
        collective.axes,
        -collective.count,
        source,
    )


def sent_bytes(program: Program, instruction: Instruction) -> float:
    """Bytes that one execution leaves on a device, and half a byte; 0 if the
    instruction is not a collective.
    """
    if instruction.kind not in _KINDS or program.stage(instruction) == "later":
        return 0.0
    arrays = _scattered(program, instruction) or instruction.results
    return _EMPTY_COST + sum(array.nbytes for array in arrays)


def describe_execution(
    program: Program, instruction: Instruction, mesh: Mesh
) -> Collective:
    """One execution of an instruction for which `sent_bytes` is not 0."""
    nbytes = int(sent_bytes(program, instruction))
    return dataclasses.replace(
        _describe(program, instruction, mesh), count=1, nbytes=nbytes
    )


def _describe(program: Program, instruction: Instruction, mesh: Mesh) -> Collective:
    """Everything but the counts."""
    kind = instruction.kind
    if _scattered(program, instruction):
        kind = "reduce-scatter"
    groups = parse_groups(instruction.attributes, mesh.devices.size)
    axes = group_axes(groups, mesh, whole=kind != "collective-permute")
    return Collective(
        kind, axes, max(map(len, groups)), 0, 0, _source(program, instruction)
    )


def _scattered(program: Program, instruction: Instruction) -> tuple[Array, ...]:
    """The slices that a fusion takes of an all-reduce in it, if it does nothing else
    with the result.
    """
    if not instruction.is_fused or instruction.operation != "all-reduce":
        return ()
    uses = list(program.computations[instruction.computation].uses(instruction.name))
    if {(use.user.operation, use.positions) for use in uses} != {
        ("dynamic-slice", (0,))
    }:
        return ()
    return tuple(use.user.arrays[0] for use in uses)


def _is_overlapped(program: Program, instruction: Instruction) -> bool:
    """Whether other work can go on between its start and its end."""
    caller = program.callers.get(instruction.computation, instruction)
    return (
        instruction.operation.endswith("-start")
        or caller.operation.endswith("-start")
        or program.stage(instruction) == "start"
    )


def _source(program: Program, instruction: Instruction) -> Source | None:
    caller = program.callers.get(instruction.computation, instruction)
    return program.source(instruction) or program.source(caller)


def parse_groups(attributes: str, devices: int) -> Groups:
    """The groups of devices of a collective, by their numbers in the program; of a
    permutation, its rings.

    Args:
        attributes: the collective's text after its type.
        devices: how many the program has; all are one group if the text names none.
    """
    # A permutation has pairs of a source and a target, every other collective has
    # groups.
    pairs = _PAIRS.search(attributes)
    if pairs is not None:
        return _join_pairs(list(map(parse_numbers, _LIST.findall(pairs[1]))))
    text = search_group(_GROUPS, attributes)
    if text.startswith("mesh"):
        return _mesh_groups(text)
    iota = _IOTA.match(text)
    if iota is not None:
        return _rows(_transposed_iota(iota[2], iota[3]).reshape(parse_numbers(iota[1])))
    groups = [parse_numbers(group) for group in _LIST.findall(text) if group]
    return groups or [tuple(range(devices))]


def _transposed_iota(dims: str, order: str | None) -> np.ndarray:
    """The numbers from 0 in an array "4,2", transposed to "1,0"."""
    shape = parse_numbers(dims)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    if not order:
        return numbers
    return numbers.transpose(*parse_numbers(order))


def _mesh_groups(text: str) -> Groups:
    """The groups of "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}": a mesh, the
    order of its devices, and axes.
    """
    mesh, _, used = text.rpartition("{")
    sizes = {
        name: int(size) for name, size in _MESH_AXIS.findall(mesh.partition("]")[0])
    }
    # Of each axis, how many parts come before what a group takes, and how many devices
    # of it a group takes.
    shares = {name: (size, 1) for name, size in sizes.items()}
    for name, before, size in _USED_AXIS.findall(used):
        shares[name] = int(before or 1), int(size or sizes[name])
    shape = [
        (before, size, sizes[name] // before // size)
        for name, (before, size) in shares.items()
    ]
    ids = _mesh_devices(mesh, math.prod(sizes.values())).reshape(np.ravel(shape))
    # The middle ones go last, so that each row is a group.
    dims = sorted(range(ids.ndim), key=lambda dim: dim % 3 == 1)
    return _rows(
        ids.transpose(dims).reshape(-1, math.prod(size for _, size in shares.values()))
    )


def _rows(array: np.ndarray) -> Groups:
    return list(map(tuple, array.tolist()))


def _mesh_devices(mesh: str, count: int) -> np.ndarray:
    """The numbers of a mesh's devices in its order: from 0 if the text names no
    other.
    """
    order = _MESH_ORDER.search(mesh)
    if order is None:
        return np.arange(count)
    dims, permutation, listed = order.groups()
    if listed:
        return np.array(parse_numbers(listed))
    return _transposed_iota(dims, permutation)


def _join_pairs(pairs: Groups) -> Groups:
    """Groups of devices that send to one another, directly or not."""
    group_of: dict[int, set[int]] = {}
    for pair in pairs:
        joined = set().union(*(group_of.get(device, {device}) for device in pair))
        group_of.update(dict.fromkeys(joined, joined))
    # Devices of one group share a set.
    return list(dict.fromkeys(tuple(sorted(group)) for group in group_of.values()))


def group_axes(groups: Groups, mesh: Mesh, whole: bool = True) -> tuple[str, ...]:
    """The axes of the mesh that the devices of a group differ in, in its order.

    Args:
        groups: of a collective; groups of one device do not count.
        mesh: whose nth device is the program's device n.
        whole: give no axes if a group is not all devices along its axes. If False, a
            group along a single axis need not be all of it.
    """
    shape = np.array(mesh.devices.shape)
    differs = np.zeros(shape.size, bool)
    for group in groups:
        # The program is one for more devices than the mesh has.
        if max(group) >= mesh.devices.size:
            return ()
        coordinates = np.array(np.unravel_index(group, mesh.devices.shape))
        differs |= np.ptp(coordinates, axis=1) > 0
    sizes = set(map(len, groups))
    is_whole = sizes <= {1, math.prod(shape[differs])}
    if not is_whole and (whole or differs.sum() > 1):
        return ()
    return tuple(itertools.compress(mesh.axis_names, differs))
