"""Functions that patches replace now."""

import dataclasses
import importlib
import logging
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from tpuport.patches import targets
from tpuport.patches.patch import Patch
from tpuport.patches.switch import Switch

logger = logging.getLogger("tpuport")

_lock = threading.RLock()
# By the module or class that defines them, and by their names there.
_replaced: dict[Any, dict[str, "Replaced"]] = {}


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A function that a patch replaces.

    Args:
        module: the module object that was patched; a reload or a new import makes
            another one.
        definition: the function as it was before.
        raw: the attribute that replaced it.
    """

    switch: Switch
    module: ModuleType
    definition: targets.Definition
    raw: Any

    @property
    def patch(self) -> Patch:
        """The patch that replaces it."""
        return self.switch.patch

    @property
    def place(self) -> str:
        """Where the function stands: "module:qualified.name"."""
        return self.definition.place

    @property
    def is_bound(self) -> bool:
        """Whether the function's name still refers to what replaced it."""
        return vars(self.definition.holder).get(self.definition.name) is self.raw


def all_replaced() -> list[Replaced]:
    """The functions that are replaced."""
    with _lock:
        return [each for named in _replaced.values() for each in named.values()]


def at(definition: targets.Definition) -> Replaced | None:
    """What replaces the function of a definition; None if nothing does."""
    return _replaced.get(definition.holder, {}).get(definition.name)


def in_class(cls: type) -> list[Replaced]:
    """The methods of a class that are replaced: those that it defines itself."""
    return list(_replaced.get(cls, {}).values())


def original(target: str) -> Callable[..., Any]:
    """The function that a patch replaced at "module:qualified.name"; without a patch,
    the function itself.

    A method is returned as a plain function, to be called with `self`.

    Raises:
        PortError: there is no such function.
    """
    name, _, qualname = target.partition(":")
    # The import may patch it.
    definition = targets.locate(importlib.import_module(name), qualname)
    replaced = at(definition)
    return (replaced.definition if replaced else definition).function


def activate(new: Iterable[Replaced]) -> None:
    """Put patches in force, and rebind every name that refers to an original."""
    with _lock:
        pairs: dict[Any, Any] = {}
        modules: list[ModuleType] = []
        for each in new:
            definition = each.definition
            if at(definition) is not None:
                continue  # another thread was faster
            targets.bind(definition, each.raw, former=definition.raw)
            each.switch.active = True
            _replaced.setdefault(definition.holder, {})[definition.name] = each
            modules.append(each.module)
            logger.info("patched %s: %s", each.place, each.patch.why)
            pairs[definition.raw] = each.raw
            pairs[definition.function] = each.switch.wrapper
        if not pairs:
            return
        # One pass for all: it looks at every module of the process.
        count = targets.rebind(modules, pairs)
        logger.debug("rebound %d more names to patched functions", count)


def revert(replaced: Iterable[Replaced]) -> None:
    """Restore the originals."""
    with _lock:
        former = [each for each in replaced if at(each.definition) is each]
        if not former:
            return
        pairs: dict[Any, Any] = {}
        for each in former:
            each.switch.active = False
            definition = each.definition
            del _replaced[definition.holder][definition.name]
            # The class of a reloaded module is not kept alive here.
            if not _replaced[definition.holder]:
                del _replaced[definition.holder]
            # If not, somebody has replaced our function since, and theirs must stay.
            if each.is_bound:
                targets.bind(definition, definition.raw, former=each.raw)
            pairs[each.raw] = definition.raw
            pairs[each.switch.wrapper] = definition.function
        targets.rebind([each.module for each in former], pairs)


def revert_outdated(module: ModuleType) -> bool:
    """Revert what was replaced in an earlier import of a module, or before a reload;
    whether there was anything.
    """
    outdated = [
        each
        for each in all_replaced()
        if each.module.__name__ == module.__name__
        and not (each.module is module and each.is_bound)
    ]
    revert(outdated)
    return bool(outdated)
