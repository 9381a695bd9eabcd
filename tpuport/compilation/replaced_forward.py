"""A model's own forward while its instance has another one, which runs programs."""

from collections.abc import Callable

import torch

from tpuport.compilation.compiled_function import CompiledFunction


class ReplacedForward:
    """What `module.forward` would be, and a compiled function of it.

    What is not the instance's own is looked up in every call, because a library may
    replace the forward of a class whose models are ported already.

    Args:
        module: the model.
        given: a forward of the instance; None for the one that it has, if it has one.

    Attributes:
        given: as above; None if it is the class's.
    """

    def __init__(self, module: torch.nn.Module, given: Callable | None = None) -> None:
        self.module = module
        self.given: Callable | None = given or vars(module).get("forward")
        self._scan_layers: bool | None = None
        # By the function underneath, so that an earlier one has its programs again.
        self._compiled: dict[Callable, CompiledFunction] = {}

    @property
    def current(self) -> Callable:
        """The forward as it is now, bound."""
        return self.given or _class_forward(self.module)

    @property
    def compiled(self) -> CompiledFunction:
        """The compiled function of the forward as it is now."""
        current = self.current
        function = getattr(current, "__func__", current)
        if function not in self._compiled:
            self._compiled[function] = CompiledFunction(
                current,
                type(self.module).__name__,
                [self.module],
                scan_layers=self._scan_layers,
            )
        return self._compiled[function]

    def set_scan_layers(self, scan_layers: bool | None) -> None:
        """As in `tpuport.compile`; counts for programs that are made from then on."""
        self._scan_layers = scan_layers
        for compiled in self._compiled.values():
            compiled.scan_layers = scan_layers

    def restore(self) -> None:
        """Give the model the forward back that it had."""
        del self.module.forward
        if self.given is not None:
            self.module.forward = self.given


def _class_forward(module: torch.nn.Module) -> Callable:
    """What `module.forward` is for an instance that has none of its own."""
    cls = type(module)
    # As `inspect.getattr_static`, ten times as fast: this runs in each call.
    forward = next(
        vars(base)["forward"] for base in cls.__mro__ if "forward" in vars(base)
    )
    bind = getattr(type(forward), "__get__", lambda forward, *_: forward)
    return bind(forward, module, cls)
