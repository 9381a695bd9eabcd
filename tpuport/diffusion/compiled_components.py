"""A component of a pipeline whose `forward` is a compiled program: the module stays the user's, and so do its calls.

`module.forward` is replaced on the instance. Calls from outside run the program for their shapes; while something is
being traced (the whole loop as one program, a function of the user's own) the original forward runs and becomes part
of that. Where a forward cannot be a program, because it changes the lists it is given (a video VAE's caches) or
because hooks inside it keep state, it runs operation by operation on the device, and the log says so once.
"""

import functools
import logging
import types
from collections.abc import Callable
from typing import Any

import torch
from jax.core import Tracer
from torch.utils import _pytree as torch_pytree

from tpuport import compat, compilation, trace_errors
from tpuport.checkpoint import model_mesh
from tpuport.diffusion import mixed_devices, unported
from tpuport.tracing import is_tracing

logger = logging.getLogger("tpuport")

# What can be done about a component that cannot be traced, beside changing its code.
ON_HOST = "leave this component on the host: tpuport.port(pipe, components=[...]) without its name"


class _ArgumentsChangedError(Exception):
    """The forward wrote into a list or dictionary that it was given, which a program cannot do."""


class CompiledForward:
    """`module.forward` as programs, one for each set of shapes.

    Takes tensors of the host and of the device; gives tensors of the device.

    Attributes:
        module: the component.
        original: its own forward, bound.
        compiled: the `CompiledFunction` underneath.
        around: None, or a function `(run, args, kwargs) -> output` that is asked in place of `run(args, kwargs)`.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.original: Callable = module.forward
        functools.update_wrapper(self, self.original)
        self.around: Callable | None = None
        self.compiled = compilation.CompiledFunction(_watched(self.original), type(module).__name__, [module])
        self._unfit: str | None = None
        self._said = False

    @property
    def scan_layers(self) -> bool:
        """Whether identical blocks run in one loop, as in `tpuport.compile`."""
        return self.compiled.scan_layers is True

    @scan_layers.setter
    def scan_layers(self, wanted: bool) -> None:
        self.compiled.scan_layers = True if wanted else None

    @property
    def program(self) -> compilation.Program:
        """The program underneath; `program.compilations` counts."""
        return self.compiled.program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments, of the shapes that the module's own forward documents.

        Raises:
            PortError: the weights are not on the device any more, or the forward cannot be traced; the message names
                the line. Or a pipeline that is not ported called it.
        """
        if is_tracing() or _has_tracers((args, kwargs)):
            return self.original(*args, **kwargs)
        unported.check_caller(self.module)
        if self.around is not None:
            return self.around(self.run, args, kwargs)
        return self.run(args, kwargs)

    def run(self, args: tuple, kwargs: dict) -> Any:
        """One call of the program, whatever `around` is."""
        mode = mixed_devices.current()
        if self._fit():
            args, kwargs = compilation.prepare_arguments(self.module, args, kwargs)
            given = (args, kwargs) if mode is None else mode.uploaded((args, kwargs))
            try:
                with (
                    mixed_devices.suspended(),
                    trace_errors.explained(self.module, alternative=ON_HOST),
                ):
                    return self.compiled(*given[0], **given[1])
            except _ArgumentsChangedError:
                self._give_up("its forward changes lists or dictionaries that it is given")
        with mixed_devices.mixed(model_mesh(self.module)):
            return self.original(*args, **kwargs)

    def _fit(self) -> bool:
        """Whether this call can be a program."""
        if self._unfit is not None:
            return False
        hooked = [part for part in self.module.modules() if part is not self.module and _has_hooks(part)]
        if hooked and not self._said:
            self._said = True
            self._log(f"while a {type(hooked[0]).__name__} in it has hooks of diffusers")
        return not hooked

    def _give_up(self, why: str) -> None:
        self._unfit = why
        self._log(why)

    def _log(self, why: str) -> None:
        name = type(self.module).__name__
        logger.info("%s runs on the device operation by operation, not as one program: %s", name, why)


def compile_forward(
    module: torch.nn.Module, kind: type[CompiledForward] = CompiledForward
) -> CompiledForward:
    """Replace `module.forward` by a `CompiledForward`, once.

    Args:
        module: on the device, as `tpuport.port` leaves it, or a part of such a module that was marked as ported.
        kind: `CompiledForward` or what is derived from it.
    """
    held = vars(module).get("forward")
    if isinstance(held, CompiledForward):
        return held
    compiled = kind(module)
    module.forward = compiled
    return compiled


def restore_forward(module: torch.nn.Module) -> None:
    """Give a module the forward back that it had; nothing for one that was not changed."""
    held = vars(module).get("forward")
    if not isinstance(held, CompiledForward):
        return
    if isinstance(held.original, types.MethodType) and held.original.__func__ is type(module).forward:
        del module.forward
    else:
        module.forward = held.original


def _watched(original: Callable) -> Callable:
    """The forward, raising where it has changed a container among its arguments: the caller's one would not change."""

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        before, layout = torch_pytree.tree_flatten((args, kwargs))
        out = original(*args, **kwargs)
        after, now = torch_pytree.tree_flatten((args, kwargs))
        if layout != now or any(old is not new for old, new in zip(before, after, strict=True)):
            raise _ArgumentsChangedError
        return out

    return forward


def _has_tracers(tree: Any) -> bool:
    return any(
        isinstance(compat.as_jax(x) if compat.is_ported(x) else x, Tracer) for x in mixed_devices.leaves(tree)
    )


def _has_hooks(module: torch.nn.Module) -> bool:
    registry = vars(module).get("_diffusers_hook")
    return bool(registry is not None and registry.hooks)
