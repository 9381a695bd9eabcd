"""Patches that other distributions bring: the entry points of group "tpuport.patches"."""

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
    return point.dist.name if point.dist is not None else "an unknown distribution"


def patches(point: EntryPoint) -> list[Patch]:
    """What an entry point names: a patch, several, or a function that returns them.

    Raises:
        PortError: it cannot be loaded, or gives something else.
    """
    where = f"entry point {point.name} = {point.value!r} of {origin(point)}"
    try:
        found: Any = point.load()
        found = found() if callable(found) else found
    except PortError:
        raise
    except Exception as error:
        raise PortError(
            f"the patches of {origin(point)} cannot be loaded: {type(error).__name__}: {error}", where=where,
            fix=f"mend or uninstall {origin(point)}",
        ) from error  # fmt: skip
    several = list(found) if isinstance(found, (list, tuple)) else [found]
    for patch in several:
        if not isinstance(patch, Patch):
            raise PortError(
                f"{origin(point)} gives {type(patch).__name__} as a patch", where=where,
                fix="name a tpuport.patches.Patch, a list of them, or a function that returns them",
            )  # fmt: skip
    return several
