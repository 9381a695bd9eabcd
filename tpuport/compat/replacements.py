"""Install the operators that torchax lacks or gets wrong into its environment, and
remove them again.

The topics are the files of `tpuport.compat.operators` and `tpuport.compat.randomness`
that list `LOWERINGS` (torch operator to implementation, through torchax's own
`Environment.override_op_definition`) and `METHODS` (of torchax's classes, which no
operator table reaches). The topics, and what changes torch itself, are loaded by name:
they convert tensors, which needs the environment that this module completes.
"""

import functools
import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tpuport.base.temporary import ABSENT, restore_attribute
from tpuport.compat.declarations import function_of_arrays
from tpuport.internals.torchax_internals import DISPATCH, add_operator, operators

if TYPE_CHECKING:
    from tpuport.compat.declarations import Lowering, Method

logger = logging.getLogger("tpuport")

_PACKAGES = ("tpuport.compat.operators", "tpuport.compat.randomness")
_saved_lowerings: dict[Any, Any] = {}
_saved_methods: dict[tuple[str, str], Any] = {}


def lowerings() -> Iterator["Lowering"]:
    """Every replacement lowering, topic by topic."""
    for topic in _topics():
        yield from topic.LOWERINGS


def methods() -> Iterator["Method"]:
    """Every replacement method of torchax's classes, topic by topic."""
    for topic in _topics():
        yield from topic.METHODS


@functools.cache
def _topics() -> tuple[ModuleType, ...]:
    packages = map(importlib.import_module, _PACKAGES)
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return tuple(module for module in modules if hasattr(module, "LOWERINGS"))


def _changes_of_torch() -> list[ModuleType]:
    """What is changed in torch itself, beside torchax."""
    return [
        importlib.import_module(f"tpuport.compat.{name}")
        for name in (
            "device_backend",
            "missing_cuda",
            "autocast",
            "differentiation",
            "loaded_tensors",
        )
    ]


def install(environment: Any) -> None:
    """Put every replacement into a torchax environment, once; the originals are saved
    for `uninstall`.
    """
    if _saved_lowerings:
        return
    # Probes run torchax's own code, before any of it is replaced.
    replaced = [
        method
        for method in methods()
        if method.mechanism is None or method.mechanism.works()
    ]
    for lowering in lowerings():
        _saved_lowerings[lowering.target] = operators(environment).get(
            lowering.target, ABSENT
        )
        # torchax has no call that undoes this, hence the copies of its table's entries.
        of_arrays = function_of_arrays(lowering.function) if DISPATCH.works() else None
        function = _with_torch_names(lowering.target, of_arrays or lowering.function)
        add_operator(
            environment, lowering.target, function, of_arrays=of_arrays is not None
        )
        logger.debug("operator %s: %s", lowering.target, lowering.reason)
    for method in replaced:
        owner = _owner(method.owner)
        _saved_methods[method.owner, method.name] = owner.__dict__.get(
            method.name, ABSENT
        )
        setattr(owner, method.name, method.function)
        logger.debug("torchax %s.%s: %s", method.owner, method.name, method.reason)
    for change in _changes_of_torch():
        change.install()
    logger.info(
        "installed %d operators and %d tensor methods",
        len(_saved_lowerings),
        len(_saved_methods),
    )


def uninstall(environment: Any) -> None:
    """Restore exactly what `install` replaced."""
    if not _saved_lowerings:
        return
    for target, previous in _saved_lowerings.items():
        if previous is ABSENT:
            operators(environment).pop(target, None)
        else:
            operators(environment)[target] = previous
    for (owner_name, name), previous in _saved_methods.items():
        owner = _owner(owner_name)
        restore_attribute(owner, name, previous)
    for change in _changes_of_torch():
        change.uninstall()
    logger.info(
        "removed %d operators and %d tensor methods",
        len(_saved_lowerings),
        len(_saved_methods),
    )
    _saved_lowerings.clear()
    _saved_methods.clear()


def original(owner: str, name: str) -> Any:
    """A method of a torchax class as it was before its replacement was installed."""
    return _saved_methods[owner, name]


def _owner(name: str) -> Any:
    if name == "device_module":
        return importlib.import_module("torchax.device_module")
    if name.partition(".")[0] == "torch":
        return importlib.import_module(name)
    if name in ("Distribution", "VonMises"):
        return getattr(importlib.import_module("torch.distributions"), name)
    return getattr(importlib.import_module("torchax.tensor"), name)


# Of the functions that torch writes in C, whose parser takes both.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}


# One object for each, so that what was installed can be told from what is.
@functools.cache
def _with_torch_names(target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, taking arguments by all names that a function of torch has for
    them.

    Args:
        target: what it stands for. Overloads of operators get torch's names alone.
        function: gets `input` as its first argument.
    """
    if not (inspect.isbuiltin(target) or inspect.ismethoddescriptor(target)):
        return function

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        kwargs = {_NUMPY_NAMES.get(name, name): kwargs[name] for name in kwargs}
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        return function(*args, **kwargs)

    return named
