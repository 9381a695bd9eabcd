"""Patches that other distributions provide: the entry points of group
"tpuport.patches".
"""

import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any

from tpuport.errors import PortError
from tpuport.patches.patch import Patch

GROUP = "tpuport.patches"


def points() -> list[EntryPoint]:
    """The entry points of every installed distribution."""
    return list(importlib.metadata.entry_points(group=GROUP))


def origin(point: EntryPoint) -> str:
    """The distribution that an entry point belongs to."""
    if point.dist is None:
        return "an unknown distribution"
    return point.dist.name


def load_patches(point: EntryPoint) -> list[Patch]:
    """The patches of an entry point, which names a patch, several, or a function that
    returns them.

    Raises:
        PortError: it cannot be loaded, or is something else.
    """
    distribution = origin(point)
    where = f"entry point {point.name} = {point.value!r} of {distribution}"
    try:
        value: Any = point.load()
        if callable(value):
            value = value()
    except PortError:
        raise
    except Exception as error:
        raise PortError(
            f"the patches of {distribution} cannot be loaded: {type(error).__name__}: {error}", where=where,
            fix=f"correct or uninstall {distribution}",
        ) from error  # fmt: skip
    patches = list(value) if isinstance(value, (list, tuple)) else [value]
    for patch in patches:
        if not isinstance(patch, Patch):
            raise PortError(
                f"{distribution} gives {type(patch).__name__} as a patch", where=where,
                fix="name a tpuport.patches.Patch, a list of them, or a function that returns them",
            )  # fmt: skip
    return patches
