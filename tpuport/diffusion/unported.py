"""A pipeline that is not ported and has models that are: of a ported one's with `from_pipe`, or made by hand.

No code of ours runs before such a pipeline does, and what it would do with tensors of the device fails in torch. So
whose call it is, is looked up on the stack where it first reaches the device: when it calls a model, or asks torch for
a tensor on the device that the model named.
"""

import functools
import sys
from typing import Any

import torch

from tpuport.diffusion import mixed_devices
from tpuport.errors import PortError
from tpuport.library_classes import is_pipeline


def check_caller(module: torch.nn.Module) -> None:
    """PortError where the pipeline that calls this ported model is not ported itself."""
    if mixed_devices.current() is None and (pipe := _calling()) is not None:
        raise _error(pipe, f"its {type(module).__name__} is on the devices")


@functools.cache
def explain_makings() -> torch.library.Library:
    """From now on, a tensor made by torch on the device in such a pipeline is a PortError.

    It is NotImplementedError elsewhere, as without this. Lasts for as long as the library does, which is kept here.
    """
    library = torch.library.Library("_", "IMPL")
    library.fallback(_cannot_make, "PrivateUse1")
    return library


def _cannot_make(operator: Any, *args: Any, **kwargs: Any) -> Any:
    if (pipe := _calling()) is not None:
        raise _error(pipe, "models of it are on the devices")
    raise NotImplementedError(
        f"Could not run '{operator}' with arguments from the 'jax' backend: torch itself makes nothing there"
    )


def _calling() -> Any:
    """The innermost pipeline on the stack, if it is not ported."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",) and is_pipeline(pipe := frame.f_locals.get("self")):
            return None if "_tpuport" in vars(pipe) else pipe
        frame = frame.f_back
    return None


def _error(pipe: Any, why: str) -> PortError:
    return PortError(
        f"this pipeline is not ported, and {why}",
        where=type(pipe).__name__,
        fix="tpuport.port(pipe) before it is called, which leaves models where another pipeline brought them; or "
        "tpuport.to_cpu(pipe) to have them on the host",
    )
