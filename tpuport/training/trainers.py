"""Loops of accelerate and transformers: what trains a ported model works on the
device, which these libraries do not know.

They would move the model to their own. That gives it new weights, and leaves the
optimizer the old ones.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch

from tpuport import compat
from tpuport.base.temporary import restore_attribute
from tpuport.errors import PortError
from tpuport.patches.import_hook import ImportHook

# (owner, name) of what is replaced.
_saved: dict[tuple[Any, str], Any] = {}


def _is_on_device(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and any(
        map(compat.is_ported, model.parameters())
    )


def _device_of(original: property) -> property:
    """The device of an accelerator, or of a trainer's arguments: the one of the model
    that it has been given.
    """

    def device(self: Any) -> torch.device:
        if vars(self).get(_MARK):
            return torch.device("jax")
        assert original.fget is not None
        return original.fget(self)

    return property(device, doc=original.__doc__)


def _prepare(original: Callable) -> Callable:
    """`accelerate.Accelerator.prepare`."""

    @functools.wraps(original)
    def prepare(self: Any, *objects: Any, **options: Any) -> Any:
        if any(map(_is_on_device, objects)):
            _check_precision(self.mixed_precision)
            setattr(self, _MARK, True)
        return original(self, *objects, **options)

    return prepare


def _check_precision(name: str) -> None:
    """PortError for a loop that is to compute in fewer bits than its weights have."""
    if name != "no":
        raise PortError(
            f"mixed precision ({name}) of accelerate has no effect on a ported model",
            where="mixed_precision, or bf16 and fp16 of the training arguments",
            fix='leave it out, and port the model in bfloat16, tpuport.port(model, dtype="bfloat16"), or compute the '
            'loss under torch.autocast("jax", torch.bfloat16)',
        )


def _initialize(original: Callable) -> Callable:
    """`transformers.Trainer.__init__`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(self, *args, **kwargs).arguments
        is_on_device = _is_on_device(given.get("model"))
        if is_on_device and given.get("args") is not None:
            setattr(given["args"], _MARK, True)
        original(self, *args, **kwargs)
        if is_on_device:
            _check_precision(self.accelerator.mixed_precision)
            setattr(self.args, _MARK, True)
            setattr(self.accelerator, _MARK, True)

    return initialize


# The attribute of what trains a ported model.
_MARK: Final = "tpuport_trains_on_device"
# By module: the class, the attribute, and what is made of it.
_REPLACED: Final[dict[str, list[tuple[str, str, Callable[[Any], Any]]]]] = {
    "accelerate.accelerator": [
        ("Accelerator", "device", _device_of),
        ("Accelerator", "prepare", _prepare),
    ],
    "transformers.training_args": [("TrainingArguments", "device", _device_of)],
    "transformers.trainer": [("Trainer", "__init__", _initialize)],
}


def _replace(module: ModuleType) -> None:
    for class_name, name, make in _REPLACED[module.__name__]:
        owner = getattr(module, class_name)
        if (owner, name) not in _saved:
            _saved[owner, name] = vars(owner)[name]
            setattr(owner, name, make(vars(owner)[name]))


_hook: Final = ImportHook(_REPLACED.__contains__, _replace)


def install() -> None:
    """Let ported models stay where they are, in libraries that are imported already,
    and in those that will be. Does nothing the second time.
    """
    for name in _REPLACED:
        if name in sys.modules:
            _replace(sys.modules[name])
    _hook.install()


def uninstall() -> None:
    """Restore what `install` has replaced."""
    _hook.remove()
    for (owner, name), former in _saved.items():
        restore_attribute(owner, name, former)
    _saved.clear()
