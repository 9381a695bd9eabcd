"""The patches that are registered: tpuport's, those of other distributions, and those
that programs register.
"""

import logging
import threading

from tpuport.errors import PortError
from tpuport.patches import entry_points
from tpuport.patches.patch import Patch
from tpuport.patches.search import NO_MODEL_CODE, SourceIndex

logger = logging.getLogger("tpuport")

_lock = threading.RLock()
_patches: dict[str, Patch] = {}
_origins: dict[str, str] = {}
# Of the patches that there are; None after a change.
_index: SourceIndex | None = None
_loaded = False


def add(patch: Patch, origin: str) -> None:
    """Register a patch; registering it again changes nothing.

    Raises:
        PortError: another patch has this name.
    """
    global _index
    with _lock:
        known = _patches.setdefault(patch.name, patch)
        if known != patch:
            raise PortError(
                f"two patches are named {patch.name!r}, for {known.target} and {patch.target}",
                where=f"registered by {_origins[patch.name]} and {origin}", fix="rename one",
            )  # fmt: skip
        # The first registration is the one that a conflict is reported with.
        _origins.setdefault(patch.name, origin)
        _index = None


def remove(name: str) -> None:
    """Forget a patch; does nothing for an unknown name."""
    global _index
    with _lock:
        _patches.pop(name, None)
        _origins.pop(name, None)
        _index = None


def load(*, strict: bool = False) -> None:
    """Register the patches of tpuport and, once, those of other distributions.

    Raises:
        PortError: another distribution's patches cannot be loaded, and `strict`.
    """
    global _loaded
    if _loaded:
        return
    from tpuport.patches.builtin import PATCHES

    for patch in PATCHES:
        add(patch, "tpuport")
    complete = True
    for point in entry_points.points():
        try:
            for patch in entry_points.load_patches(point):
                add(patch, entry_points.origin(point))
        except PortError as error:
            if strict:
                raise
            logger.warning("%s", error)
            complete = False
    _loaded = complete


def patches() -> list[Patch]:
    """Every registered patch, in the order of registration."""
    with _lock:
        return list(_patches.values())


def origin(patch: Patch) -> str:
    """The distribution that registered a patch."""
    return _origins[patch.name]


def index() -> SourceIndex:
    """The patches by their sources: one object until patches change."""
    global _index
    with _lock:
        if _index is None:
            _index = SourceIndex(_patches.values())
        return _index


def is_target(module: str) -> bool:
    """Whether a patch names this module."""
    return module in index().modules


def is_model_code(module: str) -> bool:
    """Whether a module may contain functions that patches replace."""
    return module.partition(".")[0] not in NO_MODEL_CODE or is_target(module)


def is_watched(module: str) -> bool:
    """Whether a module is searched as soon as it is imported: one of a package that
    patches name.
    """
    return module.partition(".")[0] in index().packages and is_model_code(module)
