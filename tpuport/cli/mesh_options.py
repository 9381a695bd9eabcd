"""The mesh that the options of `tpuport compile` ask for, over the devices of a
slice.
"""

import argparse
from math import prod
from typing import Final

from tpuport.base.mappings import without_nones
from tpuport.base.plurals import count_noun
from tpuport.cli.arguments import UsageError

AXES: Final = ("dp", "sp", "tp")


def mesh_notes(mesh: dict[str, int], *, is_given: bool, suggest: bool) -> list[str]:
    """What a report says about where its mesh comes from."""
    if suggest:
        return ["the mesh is the best of the splits that were tried"]
    if is_given or mesh["tp"] == 1:
        return []
    return [f"no mesh was given: tp over all {mesh['tp']} devices"]


def axis_sizes(options: argparse.Namespace) -> dict[str, int]:
    """The sizes that the user gave, of which one may be -1.

    Raises:
        UsageError: a size that is not possible.
    """
    # 0 is a size that the user gave, and not a missing option.
    options_by_axis = {axis: getattr(options, axis) for axis in AXES}
    sizes = without_nones(options_by_axis)
    for axis, size in sizes.items():
        if size < 1 and size != -1:
            raise UsageError(
                f"a mesh axis has at least one device, not {size}",
                where=f"--{axis}",
                fix="use a positive number, or -1 for what the other axes leave",
            )
    if list(sizes.values()).count(-1) > 1:
        where = " ".join(f"--{axis}" for axis in AXES)
        raise UsageError("only one axis can take what the others leave", where=where)
    return sizes


def sizes_to_begin_with(fixed_axes: dict[str, int]) -> dict[str, int]:
    """The first split of a suggestion: an axis that is free takes what the fixed ones
    leave, tp first.

    Raises:
        UsageError: no axis is free.
    """
    # More tp needs the least memory on a device, so that the first program is the
    # likeliest to fit.
    for axis in ("tp", "dp", "sp"):
        if axis not in fixed_axes:
            return {**fixed_axes, axis: -1}
    where = " ".join(f"--{axis} {fixed_axes[axis]}" for axis in AXES)
    raise UsageError(
        "with every axis given, nothing is left to vary",
        where=f"--suggest {where}",
        fix="leave an axis or --suggest out",
    )


def full_mesh(sizes: dict[str, int], devices: int, topology: str) -> dict[str, int]:
    """The sizes of all axes over a slice's devices: tp over all devices if no size was
    given.

    Raises:
        UsageError: the mesh does not take all devices.
    """
    if not sizes:
        return {"dp": 1, "sp": 1, "tp": devices}
    requested = {"dp": 1, "sp": 1, "tp": 1} | sizes
    # The axis of -1, if there is any, takes what the others leave.
    product = abs(prod(requested.values()))
    free = [axis for axis, size in requested.items() if size == -1]
    mesh = requested | dict.fromkeys(free, devices // product)
    if prod(mesh.values()) == devices:
        return mesh
    needed = count_noun(product, "device")
    if free:
        needed = f"a multiple of {needed}"
    raise UsageError(
        f"the mesh takes {needed}, and {topology} has {devices}",
        where=" ".join(
            f"--{axis} {size}" for axis, size in requested.items() if size != 1
        )
        or "--tp 1",
        fix=f"choose --dp, --sp and --tp whose product is {devices}, or leave them out for --tp {devices}",
    )
