"""Optimizers over parameters on the device, of torch and of everybody else: each step
is one program, and so is the clipping of gradients.
"""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.utils import clip_grad

from tpuport import compat
from tpuport.base.temporary import restore_attribute
from tpuport.compat import deferral
from tpuport.compat.tracing import is_tracing
from tpuport.internals.torch_internals import types_of_lists
from tpuport.training.collection import Collection, Programs

# Of optimizers, and of the functions below.
_programs: weakref.WeakKeyDictionary[Any, Programs] = weakref.WeakKeyDictionary()
# (owner, name) of what is replaced.
_saved: dict[tuple[Any, str], Any] = {}
# Calls its closure several times, with values of the device in between.
_BY_VALUES = (torch.optim.LBFGS,)


def programs_of(owner: Any) -> Programs:
    """The programs of an optimizer, or of a function of torch."""
    return _programs.setdefault(owner, Programs())


def _run_collected(owner: Any, function: Callable, *args: Any, **kwargs: Any) -> Any:
    """What a function returns, whose operators on the device run as one program."""
    collection = Collection(programs_of(owner))
    with compat.environment():
        try:
            with deferral.deferring(collection):
                return function(*args, **kwargs)
        finally:
            collection.run()


def _is_collected(tensors: Iterable[Any]) -> bool:
    """Whether operators on these tensors are to be collected."""
    return not (is_tracing() or deferral.collector()) and any(
        map(compat.is_ported, tensors)
    )


def _step_of(step: Callable) -> Callable:
    """The step of a class of optimizers, collected where parameters are on the
    device.
    """

    @functools.wraps(step)
    def run(self: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
        parameters = (part for group in self.param_groups for part in group["params"])
        if not _is_collected(parameters) or self.defaults.get("differentiable"):
            return step(self, *_given(closure), *args, **kwargs)
        loss = None
        if closure is not None:
            # Runs the model, whose programs are its own.
            with torch.enable_grad():
                loss = closure()
        result = _run_collected(self, step, self, *args, **kwargs)
        return result if closure is None else loss

    run.is_collected = True  # type: ignore[attr-defined]
    return run


def _given(closure: Any) -> tuple:
    return () if closure is None else (closure,)


def _initialize(self: Any, *args: Any, **kwargs: Any) -> None:
    """`torch.optim.Optimizer.__init__`."""
    _saved[torch.optim.Optimizer, "__init__"](self, *args, **kwargs)
    _forget_fused_kernels(self)
    cls = type(self)
    if not issubclass(cls, _BY_VALUES) and not getattr(cls.step, "is_collected", False):
        _saved.setdefault((cls, "step"), vars(cls).get("step", cls.step))
        cls.step = _step_of(cls.step)  # type: ignore[method-assign]


def _forget_fused_kernels(optimizer: Any) -> None:
    """Let an optimizer with `fused=True` compute as one without: its step is one
    program.
    """
    groups = optimizer.param_groups
    if any(
        map(compat.is_ported, (part for group in groups for part in group["params"]))
    ):
        for options in (optimizer.defaults, *groups):
            if options.get("fused"):
                options["fused"] = None
                vars(optimizer).pop("_step_supports_amp_scaling", None)


def _collected(original: Callable) -> Callable:
    """A function of parameters whose operators on the device are collected."""

    @functools.wraps(original)
    def run(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        elif not isinstance(parameters, list | tuple):
            parameters = list(parameters)
        if not _is_collected(parameters):
            return original(parameters, *args, **kwargs)
        return _run_collected(original, original, parameters, *args, **kwargs)

    return run


def install() -> None:
    """Let optimizers run as programs. Does nothing the second time."""
    if _saved:
        return
    _replace(torch.optim.Optimizer, "__init__", _initialize)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        function = _collected(getattr(clip_grad, name))
        for module in (clip_grad, torch.nn.utils):
            _replace(module, name, function)
    for types in types_of_lists():
        types.append(compat.device_class())


def _replace(owner: Any, name: str, function: Any) -> None:
    _saved[owner, name] = getattr(owner, name)
    setattr(owner, name, function)


def uninstall() -> None:
    """Restore what `install` has replaced."""
    if not _saved:
        return
    for (owner, name), former in _saved.items():
        restore_attribute(owner, name, former)
    _saved.clear()
    for types in types_of_lists():
        types.remove(compat.device_class())
