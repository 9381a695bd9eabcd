"""One function of torch on tensors of the device."""

from collections.abc import Callable
from typing import Any

from tpuport.compat.runtime import environment


def on_device(function: Callable, args: tuple, kwargs: dict) -> Any:
    """Call a function of torch in torchax's environment; its tensors are on the device, or not concerned."""
    with environment():
        return function(*args, **kwargs)
