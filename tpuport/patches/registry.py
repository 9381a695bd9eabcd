"""Patches: applied when what they replace is imported, checked against its source, listed, and taken back.

A patch that is registered waits for its target's module. When that is imported, or has been, the target's source is
compared with the one that the patch was written for, and a function is put in its place that calls the replacement
where tensors are on the device; names that other modules have bound to the target are put right as well. `revert_all`
puts everything back.
"""

import dataclasses
import importlib
import importlib.metadata
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal

import wrapt

from tpuport.errors import PortError
from tpuport.patches import entry_points, targets
from tpuport.patches.digests import digest as digest
from tpuport.patches.dispatch import Switch
from tpuport.patches.patch import Patch as Patch
from tpuport.patches.preparing import before_tracing as before_tracing
from tpuport.patches.preparing import preparations
from tpuport.patches.status import Refusal, State, Status, check_version, installed_version

logger = logging.getLogger("tpuport")

Strictness = Literal["error", "warn", "off"]
VARIABLE = "TPUPORT_PATCHES"

_lock = threading.RLock()  # held for changes of what follows, never while a module is imported
_patches: dict[str, Patch] = {}
_origins: dict[str, str] = {}
_applied: dict[str, "_Record"] = {}
_refused: dict[str, tuple[State, str]] = {}
_warned: set[str] = set()  # what was logged since patches are in force
_armed: set[str] = set()  # modules that wrapt will tell of
_strictness: Strictness = "off"
_asked: Strictness | None = None  # what the user said last, until everything is reverted
_loaded = False


@dataclasses.dataclass(frozen=True)
class _Record:
    """A patch in force: where, in which module object, and what stands there now."""

    switch: Switch
    module: ModuleType
    place: targets.Place
    raw: Any


def register(patch: Patch) -> None:
    """Make a patch known; it is applied at once where patches are in force. Registering it again changes nothing.

    Raises:
        PortError: another patch has its name; or it cannot be applied (see `apply_all`).
    """
    _register(patch, "registered in code")
    if _strictness != "off":
        _apply([patch.module])


def _register(patch: Patch, origin: str) -> None:
    with _lock:
        known = _patches.setdefault(patch.name, patch)
        if known != patch:
            raise PortError(
                f"two patches are called {patch.name!r}, for {known.target} and {patch.target}",
                where=f"registered by {_origins[patch.name]} and {origin}", fix="rename one",
            )  # fmt: skip
        _origins.setdefault(patch.name, origin)


def unregister(name: str) -> None:
    """Forget a patch, and take it back where it is applied. Does nothing for a name that is not known."""
    with _lock:
        _revert([name])
        _patches.pop(name, None)
        _origins.pop(name, None)
        _refused.pop(name, None)


def apply_all(strictness: Strictness | None = None) -> None:
    """Put every registered patch in force: now where its target is imported, otherwise when it will be.

    Those that are in force stay as they are. A module that was reloaded, or imported anew, is patched again.

    Args:
        strictness: what happens where a target is not what its patch was written for. "error": a PortError, from this
            call or out of the import of the target. "warn": a logged warning, and the patch is not applied. "off":
            no patch is applied, and none stays. None: as in the last call that said; then as TPUPORT_PATCHES in the
            environment says; then "error".

    Raises:
        PortError: as `strictness` says; then no patch is in force.
    """
    global _strictness, _asked
    chosen = _chosen(strictness)
    if chosen == "off":
        revert_all()
    with _lock:
        _asked = strictness or _asked
        _strictness = chosen
        _refused.clear()
    if chosen == "off":
        return
    try:
        _load(strict=chosen == "error")
        _apply([patch.module for patch in list(_patches.values())])
    except BaseException:
        revert_all()
        raise


def revert_all() -> None:
    """Put back everything that patches replaced; imports to come patch nothing. Does nothing when there is nothing."""
    global _strictness, _asked
    with _lock:
        _strictness, _asked = "off", None
        _refused.clear()
        _warned.clear()
        names = list(_applied)
        _revert(names)
    if names:
        logger.info("reverted %d patches: %s", len(names), ", ".join(names))


def applied() -> tuple[str, ...]:
    """Names of the patches that are in force now."""
    with _lock:
        return tuple(_applied)


def original(target: str) -> Callable[..., Any]:
    """The function that a patch replaced, of the target as the patch names it; without a patch, the target itself.

    For a method it is the plain function, to be called with `self`.

    Raises:
        PortError: there is no such function.
    """
    with _lock:
        for record in _applied.values():
            if record.switch.patch.target == target:
                return record.place.function
    module, _, qualname = target.partition(":")
    return targets.locate(importlib.import_module(module), qualname).function


def prepared(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module's call after what `before_tracing` registered for its classes, bases first.

    Without any, or where the patches of the class are not in force, they are as they were.
    """
    args, kwargs = tuple(args), dict(kwargs)
    for cls in reversed(type(module).__mro__):
        name = f"{cls.__module__}:{cls.__qualname__}"
        # A derived class with a forward of its own takes what it likes; what it hands on is met in the trace.
        if not _serves(name) or getattr(type(module), "forward", None) is not getattr(cls, "forward", None):
            continue
        for function in preparations(name):
            args, kwargs = function(module, args, kwargs)
    return args, kwargs


def _serves(cls: str) -> bool:
    """Whether a class is patched now; also one that no patch names, while patches are in force."""
    own = [patch for patch in list(_patches.values()) if patch.target.rpartition(".")[0] == cls]
    with _lock:
        records = [_applied[patch.name] for patch in own if patch.name in _applied]
    for record in records:
        record.switch.replacement()  # its module is what registers preparations
    return bool(records) or (not own and _strictness != "off")


def statuses() -> list[Status]:
    """Every registered patch with its state, in the order of registration; nothing is imported for it."""
    _load()
    with _lock:
        return [_status(patch) for patch in _patches.values()]


def _status(patch: Patch) -> Status:
    state, detail = _refused.get(patch.name, ("waiting for import", ""))
    if patch.name in _applied:
        state = "applied"
    elif _strictness == "off":
        state = "off"
    elif state == "waiting for import":
        try:
            check_version(patch)
        except Refusal as refusal:
            state, detail = refusal.state, str(refusal)
    return Status(patch, state, installed_version(patch), _origins[patch.name], detail)


def _chosen(strictness: Strictness | None) -> Strictness:
    return strictness or _asked or environment_strictness()


def environment_strictness() -> Strictness:
    """What TPUPORT_PATCHES says, "error" where it says nothing.

    Raises:
        PortError: it says something else than "error", "warn" or "off".
    """
    value = os.environ.get(VARIABLE) or "error"
    if value not in ("error", "warn", "off"):
        raise PortError(f"{VARIABLE} is {value!r}", fix='set it to "error", "warn" or "off"')
    return value


def _load(*, strict: bool = False) -> None:
    """Register what tpuport brings, and once what other distributions do."""
    global _loaded
    if _loaded:
        return
    from tpuport.patches.builtin import PATCHES

    for patch in PATCHES:
        _register(patch, "tpuport")
    complete = True
    for point in entry_points.points():
        try:
            for patch in entry_points.patches(point):
                _register(patch, entry_points.origin(point))
        except PortError as error:
            if strict:
                raise
            logger.warning("%s", error)
            complete = False
    _loaded = complete


def _apply(names: list[str]) -> None:
    """Patch those modules that have been imported, and the others when they will be."""
    modules = [module for name in dict.fromkeys(names) if (module := _arm(name)) is not None]
    _put([record for module in modules for record in _records(module)])


def _arm(name: str) -> ModuleType | None:
    """A module if it has been imported; else None, and wrapt will tell when it is."""
    module = sys.modules.get(name)
    if module is not None and _being_imported(module):
        module = importlib.import_module(name)  # another thread is at it: wait
        if _being_imported(module):
            logger.warning(
                "%s is being imported by this thread; enable its patches before, or afterwards", name
            )
            return None
    if name in sys.modules:
        return sys.modules[name]
    with _lock:
        if name in _armed:
            return None
        _armed.add(name)
    wrapt.register_post_import_hook(_imported, name)
    return None


def _being_imported(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _imported(module: ModuleType) -> None:
    """wrapt's call, inside the import of the module, once."""
    name = module.__name__
    with _lock:
        _armed.discard(name)
    try:
        if _strictness != "off":
            _put(_records(module))
    except BaseException:
        if _being_imported(module):
            # The import fails, and Python forgets the module. The next attempt has to meet the hook again, which
            # wrapt takes only for a module that is not there.
            sys.modules.pop(name, None)
            with _lock:
                _armed.add(name)
            wrapt.register_post_import_hook(_imported, name)
        raise


def _records(module: ModuleType) -> list[_Record]:
    """What is to be put where for the patches of a module that are not in force, checked; what is refused is noted."""
    new: list[_Record] = []
    for patch in [patch for patch in list(_patches.values()) if patch.module == module.__name__]:
        try:
            record = _checked(patch, module, new)
        except Refusal as refusal:
            _refused[patch.name] = (refusal.state, str(refusal))
            if _strictness == "error" and refusal.state not in ("version outside range", "not installed"):
                raise refusal.error from None
            text = f"patch {patch.name} is not applied: {refusal}"
            if text not in _warned:
                logger.warning("%s", text)
                _warned.add(text)
            continue
        if record is not None:
            new.append(record)
    return new


def _checked(patch: Patch, module: ModuleType, others: list[_Record]) -> _Record | None:
    """What applying a patch beside others would put where; None where it is in force."""
    with _lock:
        known = _applied.get(patch.name)
        if known is not None:
            if known.module is module and vars(known.place.holder).get(known.place.name) is known.raw:
                return None
            _revert([patch.name])  # the module was imported anew, or reloaded
        others = [*others, *_applied.values()]
    check_version(patch)
    rival = next((other.switch.patch for other in others if other.switch.patch.target == patch.target), None)
    if rival is not None:
        error = PortError(
            f"patches {rival.name!r} and {patch.name!r} replace the same function", where=patch.target
        )
        raise Refusal("failed", error)
    place = _place(patch, module)
    switch = Switch(patch, place.function)
    try:
        switch.prepare()
    except PortError as error:
        raise Refusal("failed", error) from error
    return _Record(switch, module, place, place.holding(switch.wrapper))


def _place(patch: Patch, module: ModuleType) -> targets.Place:
    """The target, checked to be what the patch was written for."""
    version = f"{patch.package} {installed_version(patch)}" if patch.package else module.__name__
    fix = (
        f"reinstall {version} if its files were edited, or take another version of it or of the patch's package; or "
        f'run without the patch: {VARIABLE}=warn, or tpuport.enable(patches="warn")'
    )
    try:
        place = targets.locate(module, patch.qualname)
    except PortError as error:
        what = f"{version} lacks the function that patch {patch.name!r} replaces: {error.what}"
        raise Refusal("target missing", PortError(what, where=patch.target, fix=error.fix or fix)) from None
    try:
        found = digest(place.function)
    except PortError as error:
        raise Refusal("source differs", error) from None
    if found not in patch.source:
        what = f"{version} has another source than the one that patch {patch.name!r} was written for"
        raise Refusal("source differs", PortError(what, where=f"{patch.target}, digest {found}", fix=fix))
    return place


def _put(records: list[_Record]) -> None:
    """Make patches active, and bind every name that has an original to what stands in."""
    with _lock:
        records = [record for record in records if record.switch.patch.name not in _applied]
        if not records or _strictness == "off":
            return  # another thread was faster, or has reverted everything
        pairs: dict[Any, Any] = {}
        for record in records:
            targets.put(record.place, record.raw)
            record.switch.active = True
            _applied[record.switch.patch.name] = record
            logger.info("patched %s: %s", record.switch.patch.target, record.switch.patch.why)
            pairs |= {record.place.raw: record.raw, record.place.function: record.switch.wrapper}
        count = targets.rewrite([record.module for record in records], pairs)
        logger.debug("%d more names were bound to what is patched", count)


def _revert(names: list[str]) -> None:
    """Put originals back, the last patch first."""
    records = [_applied.pop(name) for name in reversed(names) if name in _applied]
    if not records:
        return
    pairs: dict[Any, Any] = {}
    for record in records:
        record.switch.active = False
        place = record.place
        if (
            vars(place.holder).get(place.name) is record.raw
        ):  # else somebody has put another function there since
            targets.put(place, place.raw, record.raw)
        pairs |= {record.raw: place.raw, record.switch.wrapper: place.function}
    targets.rewrite([record.module for record in records], pairs)
