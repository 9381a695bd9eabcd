"""Patches: applied when their target is imported, checked against its source, listed
and reverted.

A registered patch waits until its target's module is imported. Then the target's source
is compared with the one that the patch was written for, and the target is replaced by a
switch, which calls the replacement if tensors are on the device. Names in other modules
that refer to the target are rebound as well. `revert_all` undoes all of it.
"""

import dataclasses
import importlib
import importlib.metadata
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

import wrapt

from tpuport import trace_errors
from tpuport.errors import PortError
from tpuport.patches import entry_points, idle, targets
from tpuport.patches.digests import digest as digest
from tpuport.patches.patch import (
    VARIABLE,
    Refusal,
    State,
    Status,
    check_version,
    installed_version,
)
from tpuport.patches.patch import Patch as Patch
from tpuport.patches.switch import Switch, is_being_imported, preparations
from tpuport.patches.switch import before_tracing as before_tracing
from tpuport.patches.target_checks import check_definition

logger = logging.getLogger("tpuport")

Strictness = Literal["error", "warn", "off"]

# Guards the state below. Never taken while a module is imported: the import may wait
# for another thread's.
_lock = threading.RLock()
_patches: dict[str, Patch] = {}
_origins: dict[str, str] = {}
_applied: dict[str, "_Record"] = {}
_refused: dict[str, tuple[State, str]] = {}
# Texts logged since patches were enabled: each is logged once.
_warned: set[str] = set()
_armed: set[str] = set()  # modules with a post-import hook
_strictness: Strictness = "off"
# The last explicit choice of a caller; `revert_all` forgets it.
_requested: Strictness | None = None
_loaded = False


@dataclasses.dataclass(frozen=True)
class _Record:
    """A patch in force.

    Args:
        module: the module object that was patched; a reload or a new import makes
            another one.
        definition: the target as it was before.
        raw: the attribute that replaced it.
    """

    switch: Switch
    module: ModuleType
    definition: targets.Definition
    raw: Any

    @property
    def is_bound(self) -> bool:
        """Whether the target's name still refers to what replaced it."""
        return vars(self.definition.holder).get(self.definition.name) is self.raw


def register(patch: Patch) -> None:
    """Add a patch; it is applied at once if patches are in force. Registering it again
    changes nothing.

    Raises:
        PortError: another patch has this name, or the patch cannot be applied (see
            `apply_all`).
    """
    # Registered even if it cannot be applied: `statuses` then says why.
    _register(patch, "registered in code")
    if _strictness != "off":
        _apply([patch.module])


def _register(patch: Patch, origin: str) -> None:
    with _lock:
        known = _patches.setdefault(patch.name, patch)
        if known != patch:
            raise PortError(
                f"two patches are named {patch.name!r}, for {known.target} and {patch.target}",
                where=f"registered by {_origins[patch.name]} and {origin}", fix="rename one",
            )  # fmt: skip
        # The first registration is the one that a conflict is reported with.
        _origins.setdefault(patch.name, origin)


def unregister(name: str) -> None:
    """Revert a patch if it is applied, and forget it. Does nothing for an unknown
    name.
    """
    with _lock:
        # Before it is forgotten: a patch in force is reverted by its name.
        _revert([name])
        _patches.pop(name, None)
        _origins.pop(name, None)
        _refused.pop(name, None)


def apply_all(strictness: Strictness | None = None) -> None:
    """Put every registered patch in force: now if its target has been imported,
    otherwise upon its import.

    Patches in force stay. A module that was reloaded, or imported again, is patched
    again.

    Args:
        strictness: what happens if a target is not the one that its patch was written
            for. "error": a PortError, from this call or from the import of the target.
            "warn": a logged warning, and the patch is not applied. "off": all patches
            are reverted and none is applied. None: the strictness of the last call that
            gave one; else that of TPUPORT_PATCHES in the environment; else "error".

    Raises:
        PortError: see `strictness`; then no patch is in force.
    """
    global _strictness, _requested
    effective = strictness or _requested or environment_strictness()
    if effective == "off":
        revert_all()
    with _lock:
        _requested = strictness or _requested
        _strictness = effective
        _refused.clear()
    # Entry points are not even loaded then: their packages may be what is broken.
    if effective == "off":
        return
    try:
        _load(strict=effective == "error")
        _apply([patch.module for patch in list(_patches.values())])
    # All or nothing: a program with half of its patches is hard to explain.
    except BaseException:
        revert_all()
        raise


def revert_all() -> None:
    """Restore everything that patches replaced; later imports are not patched. Does
    nothing without patches.
    """
    global _strictness, _requested
    with _lock:
        _strictness = "off"
        _requested = None
        _refused.clear()
        _warned.clear()
        names = list(_applied)
        _revert(names)
    if names:
        logger.info("reverted %d patches: %s", len(names), ", ".join(names))


def applied() -> tuple[str, ...]:
    """Names of the patches in force."""
    with _lock:
        return tuple(_applied)


def original(target: str) -> Callable[..., Any]:
    """The function that a patch replaced, by the patch's `target`; without a patch, the
    target itself.

    A method is returned as a plain function, to be called with `self`.

    Raises:
        PortError: there is no such function.
    """
    with _lock:
        for record in _applied.values():
            if record.switch.patch.target == target:
                return record.definition.function
    # No patch is in force, so the definition is the original.
    module, _, qualname = target.partition(":")
    return targets.locate(importlib.import_module(module), qualname).function


def prepared(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module's call, as changed by the `before_tracing` functions of
    its classes, bases first.

    They are unchanged if there are no such functions, or the patches of the class are
    not in force.
    """
    # A copy, because preparations may change their arguments in place.
    args, kwargs = tuple(args), dict(kwargs)
    for cls in reversed(type(module).__mro__):
        name = f"{cls.__module__}:{cls.__qualname__}"
        # A derived class that overrides forward has its own signature; the base's
        # forward is met inside the trace.
        runs_forward_of = getattr(type(module), "forward", None) is getattr(
            cls, "forward", None
        )
        if runs_forward_of and _is_patched(name):
            for function in preparations(name):
                args, kwargs = function(module, args, kwargs)
    return args, kwargs


def _is_patched(cls: str) -> bool:
    """Whether a class is patched now; while patches are in force, true for a class
    without patches as well.
    """
    # Patches name methods, and preparations the class.
    own = [
        patch
        for patch in list(_patches.values())
        if patch.target.rpartition(".")[0] == cls
    ]
    with _lock:
        records = [_applied[patch.name] for patch in own if patch.name in _applied]
    for record in records:
        record.switch.replacement()  # importing its module registers the preparations
    return bool(records) or (not own and _strictness != "off")


def statuses() -> list[Status]:
    """Every registered patch with its state, in the order of registration; imports no
    target.
    """
    _load()
    with _lock:
        return list(map(_status, _patches.values()))


def _status(patch: Patch) -> Status:
    # In this order: a patch that was refused before may have been applied by a later
    # call.
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


def environment_strictness() -> Strictness:
    """The value of TPUPORT_PATCHES, "error" if it is not set.

    Raises:
        PortError: the value is not "error", "warn" or "off".
    """
    # Set but empty counts as not set: `TPUPORT_PATCHES= python ...`.
    value = os.environ.get(VARIABLE) or "error"
    if value not in ("error", "warn", "off"):
        raise PortError(
            f"{VARIABLE} is {value!r}", fix='set it to "error", "warn" or "off"'
        )
    return value


def _load(*, strict: bool = False) -> None:
    """Register the patches of tpuport and, once, those of other distributions."""
    global _loaded
    if _loaded:
        return
    from tpuport.patches.builtin import PATCHES

    for patch in PATCHES:
        _register(patch, "tpuport")
    complete = True
    for point in entry_points.points():
        try:
            for patch in entry_points.load_patches(point):
                _register(patch, entry_points.origin(point))
        except PortError as error:
            if strict:
                raise
            logger.warning("%s", error)
            complete = False
    _loaded = complete


def _apply(names: list[str]) -> None:
    """Patch the modules that have been imported, and the others upon their import."""
    records: list[_Record] = []
    # Several patches often have one module.
    for name in dict.fromkeys(names):
        module = _imported_module(name)
        if module is None:
            _arm(name)
        else:
            records += _new_records(module)
    _activate(records)


def _imported_module(name: str) -> ModuleType | None:
    """A module that has been imported to its end; None if it has not."""
    module = sys.modules.get(name)
    if not is_being_imported(module):
        return module
    module = importlib.import_module(name)  # another thread imports it: wait for that
    if is_being_imported(module):
        # This thread imports it, so there is nothing to wait for, and it is too late
        # for a hook.
        logger.warning(
            "%s is being imported by this thread; enable its patches before, or afterwards",
            name,
        )
        return None
    return module


def _arm(name: str) -> None:
    """Have the patches of a module applied when it is imported."""
    with _lock:
        if name in _armed or name in sys.modules:
            return
        _armed.add(name)
    # Outside the lock: if another thread has imported the module by now, wrapt calls
    # the hook at once.
    wrapt.register_post_import_hook(_after_import, name)


def _after_import(module: ModuleType) -> None:
    """wrapt calls this once, inside the import of the module."""
    name = module.__name__
    with _lock:
        _armed.discard(name)
    try:
        if _strictness != "off":
            _activate(_new_records(module))
    except BaseException:
        if is_being_imported(module):
            # The import fails and Python forgets the module, so the next attempt needs
            # the hook again. wrapt accepts a hook only for a module that is not in
            # sys.modules.
            sys.modules.pop(name, None)
            with _lock:
                _armed.add(name)
            wrapt.register_post_import_hook(_after_import, name)
        raise


def _new_records(module: ModuleType) -> list[_Record]:
    """Checked records for the patches of a module that are not in force; refusals are
    noted.

    Raises:
        PortError: a patch is refused and the strictness is "error".
    """
    records: list[_Record] = []
    patches = [
        patch for patch in list(_patches.values()) if patch.module == module.__name__
    ]
    for patch in patches:
        try:
            record = _check(patch, module, records)
        except Refusal as refusal:
            _note_refusal(patch, refusal)
            continue
        if record is not None:
            records.append(record)
    return records


def _note_refusal(patch: Patch, refusal: Refusal) -> None:
    _refused[patch.name] = (refusal.state, str(refusal))
    # Another version of a library is ordinary; a different source under a supported
    # version is not.
    if _strictness == "error" and refusal.state not in (
        "version outside range",
        "not installed",
    ):
        raise refusal.error from None
    text = f"patch {patch.name} is not applied: {refusal}"
    if text not in _warned:
        logger.warning("%s", text)
        _warned.add(text)


def _check(patch: Patch, module: ModuleType, pending: list[_Record]) -> _Record | None:
    """The record of a patch that can be applied beside the pending ones; None if the
    patch is in force.

    Raises:
        Refusal: it cannot be applied.
    """
    with _lock:
        record = _applied.get(patch.name)
        if record is not None:
            if record.module is module and record.is_bound:
                return None
            _revert([patch.name])  # the module was imported again, or reloaded
        others = [*pending, *_applied.values()]
    check_version(patch)
    for other in others:
        rival = other.switch.patch
        if rival.target == patch.target:
            what = (
                f"patches {rival.name!r} and {patch.name!r} replace the same function"
            )
            raise Refusal("failed", PortError(what, where=patch.target))
    definition = check_definition(patch, module)
    switch = Switch(patch, definition.function)
    # A replacement that cannot be imported is better refused now than in the first
    # call.
    try:
        switch.prepare()
    except PortError as error:
        raise Refusal("failed", error) from error
    return _Record(switch, module, definition, definition.wrap_like(switch.wrapper))


def _activate(records: list[_Record]) -> None:
    """Put patches in force, and rebind every name that refers to an original."""
    with _lock:
        records = [
            record for record in records if record.switch.patch.name not in _applied
        ]
        if not records or _strictness == "off":
            return  # another thread was faster, or has reverted everything
        pairs: dict[Any, Any] = {}
        for record in records:
            definition = record.definition
            targets.bind(definition, record.raw, former=definition.raw)
            record.switch.active = True
            _applied[record.switch.patch.name] = record
            logger.info(
                "patched %s: %s", record.switch.patch.target, record.switch.patch.why
            )
            pairs[definition.raw] = record.raw
            pairs[definition.function] = record.switch.wrapper
        # One pass for all records: it looks at every module of the process.
        count = targets.rebind([record.module for record in records], pairs)
        logger.debug("rebound %d more names to patched functions", count)


def _revert(names: list[str]) -> None:
    """Restore the originals, the last patch first."""
    records = [_applied.pop(name) for name in reversed(names) if name in _applied]
    if not records:
        return
    pairs: dict[Any, Any] = {}
    for record in records:
        record.switch.active = False
        definition = record.definition
        # If not, somebody has replaced our function since, and theirs must stay.
        if record.is_bound:
            targets.bind(definition, definition.raw, former=record.raw)
        pairs[record.raw] = definition.raw
        pairs[record.switch.wrapper] = definition.function
    targets.rebind([record.module for record in records], pairs)


def _remedy(calls: Sequence[str]) -> str:
    """What to do about a failure on whose way is a function that an idle patch
    replaces; "" if none is.
    """
    try:
        return idle.remedy(calls, statuses())
    except PortError:  # of an environment variable with a wrong value, which is reported where patches are enabled
        return ""


trace_errors.remedies.append(_remedy)
