"""Which devices take part in a collective, and which axes of the mesh they differ in.

A program numbers its devices as the mesh has them, in the order of `mesh.devices.flat`, whatever their own ids are.
"""

import math
import re
from typing import Final

import numpy as np
from jax.sharding import Mesh

_IOTA: Final = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_GROUPS: Final = re.compile(r"\breplica_groups=(\{\{.*?\}\}|\{\}|\{[\d,]+\}|\[[^ ]*|mesh\[.*?\}(?=,|$))")
_PAIRS: Final = re.compile(r"\bsource_target_pairs=\{(\{.*?\}|)\}")
_LIST: Final = re.compile(r"\{([\d,]*)\}")
_MESH_AXIS: Final = re.compile(r"""['"]([^'"]+)['"]=(\d+)""")
_MESH_ORDER: Final = re.compile(r"device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\)")
# An axis, or the part of one that varies `size` times slower than the axis's last `total / size / before` devices.
_USED_AXIS: Final = re.compile(r"""['"]([^'"]+)['"](?::\((\d+)\)(\d+))?""")

Groups = list[tuple[int, ...]]


def groups(attributes: str, devices: int) -> Groups:
    """The groups of devices, by their numbers in the program, of a collective; of a permutation, its rings.

    Args:
        attributes: the collective's text after its type.
        devices: how many the program has; they are all one group where the text names none.
    """
    if pairs := _PAIRS.search(attributes):
        return _linked([_numbers(one) for one in _LIST.findall(pairs[1])])
    found = _GROUPS.search(attributes)
    text = found[1] if found else "{}"
    if text.startswith("mesh"):
        return _of_mesh(text)
    if iota := _IOTA.match(text):
        shape, dims = _numbers(iota[1]), _numbers(iota[2])
        order = _numbers(iota[3]) if iota[3] else range(len(dims))
        return [
            tuple(row)
            for row in np.arange(math.prod(dims)).reshape(dims).transpose(order).reshape(shape).tolist()
        ]
    listed = [_numbers(one) for one in _LIST.findall(text)]
    return [one for one in listed if one] or [tuple(range(devices))]


def _of_mesh(text: str) -> Groups:
    """Those of "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}": an own mesh, its devices' order, and axes."""
    listed, _, used = text.rpartition("{")
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(listed.partition("]")[0])}
    ids = np.arange(math.prod(sizes.values()))
    if order := _MESH_ORDER.search(listed):
        if order[1]:
            dims = _numbers(order[1])
            ids = ids.reshape(dims).transpose(_numbers(order[2]) if order[2] else range(len(dims)))
        else:
            ids = np.array(_numbers(order[3]))
    dims, within = _split(sizes, _USED_AXIS.findall(used))
    ids = ids.reshape(dims)
    apart = [place for place in range(ids.ndim) if place not in within]
    size = math.prod(dims[place] for place in within)
    return [tuple(row) for row in ids.transpose(*apart, *within).reshape(-1, size).tolist()]


def _split(sizes: dict[str, int], used: list[tuple[str, str, str]]) -> tuple[list[int], list[int]]:
    """(dimensions of a mesh, places of those in use), where an axis of which a part is in use becomes three."""
    dims, within = [], []
    parts = {name: (int(before), int(size)) for name, before, size in used if size}
    for name, total in sizes.items():
        if name in parts:
            before, size = parts[name]
            within.append(len(dims) + 1)
            dims += [before, size, total // before // size]
        else:
            within += [len(dims)] if any(one[0] == name for one in used) else []
            dims.append(total)
    return dims, within


def _linked(pairs: Groups) -> Groups:
    """Devices that send to one another, directly or not."""
    group: dict[int, set[int]] = {}
    for pair in pairs:
        joined = set().union(*(group.get(one, {one}) for one in pair))
        group.update(dict.fromkeys(joined, joined))
    return [tuple(sorted(one)) for one in {min(one): one for one in group.values()}.values()]


def axes(found: Groups, mesh: Mesh, whole: bool = True) -> tuple[str, ...]:
    """The axes of the mesh that the devices of a group differ in, in its order.

    Args:
        found: groups; those of one device do not count.
        mesh: of which a program's device n is the nth.
        whole: give none where a group is not all devices along its axes; for a single axis it never has to be, if this
            is False.
    """
    shape = mesh.devices.shape
    differing, sizes = set(), set()
    for group in found:
        if max(group) >= mesh.devices.size:
            return ()
        places = np.array(np.unravel_index(group, shape))
        differing |= {axis for axis, along in enumerate(places) if along.min() != along.max()}
        sizes.add(len(group))
    is_whole = sizes <= {1, math.prod(shape[axis] for axis in differing)}
    if not is_whole and (whole or len(differing) > 1):
        return ()
    return tuple(mesh.axis_names[axis] for axis in sorted(differing))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))
