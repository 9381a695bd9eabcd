"""Patches: applied where their source stands, listed and reverted.

Every module of a patched library is searched right after its import, and modules of a
model's own code when the model is ported. A function whose source is one that a patch
was written for is replaced by a switch, which calls the replacement if tensors are on
the device. Names in other modules that refer to the function are rebound as well.
`revert_all` undoes all of it.
"""

import importlib
import importlib.util
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Literal, get_args

from tpuport import trace_errors
from tpuport.errors import PortError
from tpuport.patches import catalog, idle, replaced, targets
from tpuport.patches.import_hook import ImportHook
from tpuport.patches.patch import (
    VARIABLE,
    Patch,
    Refusal,
    State,
    Status,
    installed_version,
)
from tpuport.patches.replaced import Replaced
from tpuport.patches.search import SourceIndex
from tpuport.patches.switch import Switch, is_being_imported, preparations
from tpuport.patches.target_checks import check_definition

logger = logging.getLogger("tpuport")

Strictness = Literal["error", "warn", "off"]

# Guards the state below. Never taken while a module is imported: the import may wait
# for another thread's.
_lock = threading.RLock()
_refused: dict[str, Refusal] = {}
# Texts logged since patches were enabled: each is logged once.
_logged: set[str] = set()
# Modules that were searched, and the patches that they were searched for.
_searched: "weakref.WeakKeyDictionary[ModuleType, SourceIndex]" = (
    weakref.WeakKeyDictionary()
)
_strictness: Strictness = "off"
# The last explicit choice of a caller; `revert_all` forgets it.
_requested: Strictness | None = None


def register(patch: Patch) -> None:
    """Add a patch; it is applied at once if patches are in force. Registering it again
    changes nothing.

    Raises:
        PortError: another patch has this name, or the patch cannot be applied (see
            `apply_all`).
    """
    if not isinstance(patch, Patch):
        raise PortError(
            f"register takes a Patch, and got a {type(patch).__name__}",
            fix="register(tpuport.patches.Patch(...)), once for each",
        )
    # Registered even if it cannot be applied: `statuses` then says why.
    catalog.add(patch, "registered in code")
    if _strictness == "off":
        return
    with _lock:
        # Where a patch names a function, it goes before those that found a copy there.
        replaced.revert(
            each
            for each in replaced.all_replaced()
            if each.place == patch.target != each.patch.target
        )
    _apply(_imported_modules())
    _raise_refusals([patch])


def unregister(name: str) -> None:
    """Revert a patch if it is applied, and forget it. Does nothing for an unknown
    name.
    """
    with _lock:
        replaced.revert(
            each for each in replaced.all_replaced() if each.patch.name == name
        )
        catalog.remove(name)
        _refused.pop(name, None)


def apply_all(strictness: Strictness | None = None) -> None:
    """Put every registered patch in force: in modules that have been imported now, in
    others upon their import.

    Patches in force stay. A module that was reloaded, or imported again, is patched
    again. No import fails because of a patch.

    Args:
        strictness: what happens if a target is not the one that its patch was written
            for. "error": a PortError, from this call if the target has been imported,
            otherwise when a model of its module is ported. "warn": the patch is not
            applied, which is a logged warning when such a model is ported. "off": all
            patches are reverted and none is applied. None: the strictness of the last
            call that gave one; else that of TPUPORT_PATCHES in the environment; else
            "warn".

    Raises:
        PortError: see `strictness`; then no patch is in force.
    """
    global _strictness, _requested
    if strictness is not None and strictness not in get_args(Strictness):
        raise PortError(
            f"patches={strictness!r} is none of {', '.join(get_args(Strictness))}",
            where="tpuport.enable",
        )
    effective = strictness or _requested or environment_strictness()
    if effective == "off":
        revert_all()
    with _lock:
        _requested = strictness or _requested
        _strictness = effective
    # Entry points are not even loaded then: their packages may be what is broken.
    if effective == "off":
        return
    try:
        catalog.load(strict=effective == "error")
        # First, so that a module that is imported meanwhile is seen.
        _hook.install()
        _apply(_imported_modules())
        _raise_refusals(catalog.patches())
    # All or nothing: a program with half of its patches is hard to explain.
    except BaseException:
        revert_all()
        raise


def apply_for(model: Any) -> None:
    """Apply patches to the code of a model that is about to run: where its classes are
    defined, and where the functions that their modules use are. Say which patches for
    this code do not fit.

    Raises:
        PortError: such a patch does not fit, and the strictness is "error".
    """
    if _strictness == "off":
        return
    modules = _code_of(model)
    _apply(filter(catalog.is_model_code, modules))
    concerned = [patch for patch in catalog.patches() if patch.module in modules]
    _raise_refusals(concerned)
    for patch in concerned:
        refusal = _refused.get(patch.name)
        if refusal is not None:
            places = [
                each.place for each in replaced.all_replaced() if each.patch is patch
            ]
            effect = (
                f"It replaces {', '.join(places)} alone, with the same source"
                if places
                else f"The library's own code runs, and may be refused or slower: {patch.why}"
            )
            state = "has lost its target" if places else "is off"
            _log_once(
                logging.WARNING,
                f"patch {patch.name} {state}: {refusal.error.what}. {effect}",
            )


def _code_of(model: Any) -> list[str]:
    """The modules that define a model's classes and the functions that these modules
    use, and that have been imported.
    """
    classes = {cls for module in model.modules() for cls in type(module).__mro__}
    names = dict.fromkeys(cls.__module__ for cls in classes)
    for name in list(names):
        for value in list(vars(sys.modules.get(name, object)).values()):
            if isinstance(value, FunctionType):
                names.setdefault(value.__module__)
    return [name for name in names if name in sys.modules]


def revert_all() -> None:
    """Restore everything that patches replaced; later imports are not patched. Does
    nothing without patches.
    """
    global _strictness, _requested
    _hook.remove()
    with _lock:
        _strictness = "off"
        _requested = None
        _refused.clear()
        _logged.clear()
        _searched.clear()
        names = applied()
        replaced.revert(replaced.all_replaced())
    if names:
        logger.info("reverted %d patches: %s", len(names), ", ".join(names))


def applied() -> tuple[str, ...]:
    """Names of the patches in force."""
    return tuple(dict.fromkeys(each.patch.name for each in replaced.all_replaced()))


def prepared(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module's call, as changed by the `before_tracing` functions of
    its classes, bases first.

    They are unchanged if there are no such functions, or the patches of the class are
    not in force.
    """
    # A copy, because preparations may change their arguments in place.
    args, changed = tuple(args), dict(kwargs)
    for function in preparations_for(module):
        args, changed = function(module, args, changed)
    return args, changed


def preparations_for(module: Any) -> list[Any]:
    """The `before_tracing` functions for calls of a module, in order."""
    functions: list[Any] = []
    if _strictness == "off":
        return functions
    for cls in reversed(type(module).__mro__):
        # A derived class that overrides forward has its own signature; the base's
        # forward is met inside the trace.
        runs_forward_of = getattr(type(module), "forward", None) is getattr(
            cls, "forward", None
        )
        if runs_forward_of:
            functions += _preparations_of(cls)
    return functions


def _preparations_of(cls: type) -> list[Any]:
    """The functions for the classes that the patches in force in a class name; if no
    patch names the class, those for the class itself.
    """
    inside = replaced.in_class(cls)
    for each in inside:
        each.switch.replacement()  # importing its module registers the preparations
    # Patches name methods, and preparations the class.
    names = [each.patch.target.rpartition(".")[0] for each in inside]
    own_name = f"{cls.__module__}:{cls.__qualname__}"
    if own_name not in catalog.index().classes:
        names.append(own_name)
    return [
        function for name in dict.fromkeys(names) for function in preparations(name)
    ]


def statuses() -> list[Status]:
    """Every registered patch with its state, in the order of registration; imports no
    target.
    """
    catalog.load()
    places: dict[str, list[str]] = {}
    for each in replaced.all_replaced():
        places.setdefault(each.patch.name, []).append(each.place)
    return [
        _status(patch, tuple(places.get(patch.name, ()))) for patch in catalog.patches()
    ]


def _status(patch: Patch, places: tuple[str, ...]) -> Status:
    refusal = _refused.get(patch.name)
    state: State = "waiting for import"
    if places:
        state = "applied"
    elif _strictness == "off":
        state = "off"
    elif refusal is not None:
        state = refusal.state
    elif not _is_installed(patch.package):
        state = "not installed"
    detail = "" if refusal is None or patch.target in places else str(refusal)
    installed = installed_version(patch.package)
    return Status(patch, state, installed, catalog.origin(patch), places, detail)


def _is_installed(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # of a package that cannot say
        return False


def environment_strictness() -> Strictness:
    """The value of TPUPORT_PATCHES, "warn" if it is not set.

    Raises:
        PortError: the value is not "error", "warn" or "off".
    """
    # Set but empty counts as not set: `TPUPORT_PATCHES= python ...`.
    value = os.environ.get(VARIABLE) or "warn"
    if value not in ("error", "warn", "off"):
        raise PortError(
            f"{VARIABLE} is {value!r}", fix='set it to "error", "warn" or "off"'
        )
    return value


def _imported_modules() -> list[str]:
    return list(filter(catalog.is_watched, list(sys.modules)))


def _apply(names: Iterable[str]) -> None:
    """Patch modules that have been imported."""
    _patch(list(filter(None, map(_imported_module, names))))


def _imported_module(name: str) -> ModuleType | None:
    """A module that has been imported to its end; None if it has not."""
    module = sys.modules.get(name)
    if is_being_imported(module):
        module = importlib.import_module(name)  # another thread may import it: wait
        if is_being_imported(module):
            # This thread imports it. The hook sees the end of the import, unless it
            # began before patches were in force.
            if name not in _hook.running and catalog.is_target(name):
                what = f"{name} is being imported by this thread; enable its patches before, or afterwards"
                _log_once(logging.WARNING, what)
            return None
    return module if isinstance(module, ModuleType) else None


def _after_import(module: ModuleType) -> None:
    if _strictness != "off":
        _searched.pop(module, None)  # a reload executes a module again
        _patch([module])


_hook = ImportHook(catalog.is_watched, _after_import)


def _patch(modules: Sequence[ModuleType]) -> None:
    index = catalog.index()
    new = [each for module in modules for each in _find_replaceable(module, index)]
    with _lock:
        if _strictness == "off":
            return  # another thread has reverted everything
        replaced.activate(new)
        # Not before: another thread would go on without these patches.
        _searched.update(dict.fromkeys(modules, index))
        for each in new:
            if each.place == each.patch.target:
                _refused.pop(each.patch.name, None)


def _find_replaceable(module: ModuleType, index: SourceIndex) -> list[Replaced]:
    """The functions of a module that patches can replace, and do not replace yet;
    refusals are noted.
    """
    with _lock:
        if replaced.revert_outdated(module):
            _searched.pop(module, None)
        # A notebook, which has no spec, defines more from cell to cell.
        if module.__spec__ is not None and _searched.get(module) is index:
            return []
    new: dict[tuple[Any, str], Replaced] = {}
    for patch in catalog.patches():
        if patch.module == module.__name__:
            try:
                definition = check_definition(patch, module)
                _add(new, patch, module, definition)
            except Refusal as refusal:
                _note_refusal(patch, refusal)
    for patch, definition in index.find(module):
        if definition.slot in new:
            continue
        try:
            _add(new, patch, module, definition)
        except Refusal as refusal:
            _note_refusal(patch, refusal)
    return list(new.values())


def _add(
    new: dict[tuple[Any, str], Replaced],
    patch: Patch,
    module: ModuleType,
    definition: targets.Definition,
) -> None:
    """Add the function of a definition, unless this patch replaces it already.

    Raises:
        Refusal: the patch cannot be applied.
    """
    rival = new.get(definition.slot) or replaced.at(definition)
    if rival is not None and rival.patch is patch:
        return
    if rival is not None:
        what = (
            f"patches {rival.patch.name!r} and {patch.name!r} replace the same function"
        )
        raise Refusal("failed", PortError(what, where=definition.place))
    switch = Switch(patch, definition.function)
    # A replacement that cannot be imported is better refused now than in the first
    # call.
    try:
        switch.prepare()
    except PortError as error:
        raise Refusal("failed", error) from error
    raw = definition.wrap_like(switch.wrapper)
    new[definition.slot] = Replaced(switch, module, definition, raw)


def _note_refusal(patch: Patch, refusal: Refusal) -> None:
    with _lock:
        _refused[patch.name] = refusal
    _log_once(logging.INFO, f"patch {patch.name} is not applied: {refusal}")


def _raise_refusals(patches: Iterable[Patch]) -> None:
    """Raise the error of the first of these patches that was refused, if the user wants
    errors.
    """
    refusals = (_refused.get(patch.name) for patch in patches)
    refusal = next(filter(None, refusals), None)
    if refusal is not None and _strictness == "error":
        raise refusal.error


def _log_once(level: int, text: str) -> None:
    with _lock:
        if text in _logged:
            return
        _logged.add(text)
    logger.log(level, "%s", text)


def _remedy(calls: Sequence[str]) -> str:
    """What to do about a failure on whose way is a function that an idle patch
    replaces; "" if none is.
    """
    try:
        return idle.remedy(calls, statuses())
    except PortError:  # of an environment variable with a wrong value, which is reported where patches are enabled
        return ""


trace_errors.remedies.append(_remedy)
