"""What torch says where code names CUDA on a machine without it: one sentence with what
to write instead.

torch asks `torch.cuda._lazy_init` before it uses a CUDA device, whether a tensor is
moved there, one is made there, or a function of `torch.cuda` is called. Where there is
a GPU, nothing changes.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from tpuport.base.temporary import ABSENT, restore_attribute
from tpuport.errors import NoCudaError, PortError
from tpuport.internals.torch_internals import count_gpus

# Asked before every use, and what fails without asking.
_FUNCTIONS = ("_lazy_init", "set_device", "reset_peak_memory_stats", "memory_summary")
_METHODS = (
    (torch.cuda.Event, "__new__"),
    (torch.cuda.Stream, "__new__"),
    (torch.cuda.device, "__enter__"),
)
# torch makes these without asking, and says that it was built without CUDA.
_FACTORIES = ("asarray", "sparse_coo_tensor")

_replaced: list[tuple[Any, str, Any]] = []


def has_gpu() -> bool:
    """Whether torch has one. `torch.cuda.is_available` may be the GPU shim's answer."""
    return count_gpus() > 0


def install() -> None:
    """Let what needs CUDA explain itself. Does nothing the second time."""
    if _replaced:
        return
    for name in _FUNCTIONS:
        _replace(
            torch.cuda,
            name,
            _explaining(getattr(torch.cuda, name), f"torch.cuda.{name}()"),
        )
    for name in _FACTORIES:
        _replace(torch, name, _explaining_device(getattr(torch, name), f"torch.{name}"))
    for owner, name in _METHODS:
        function = _explaining(getattr(owner, name), f"torch.cuda.{owner.__name__}")
        # Python calls __new__ without an instance.
        _replace(owner, name, staticmethod(function) if name == "__new__" else function)
    if importlib.util.find_spec("safetensors") is not None:
        files = importlib.import_module("safetensors.torch")
        # It asks torch for pinned memory before it asks for the device.
        _replace(files, "safe_open", _opening(files.safe_open))


def uninstall() -> None:
    """Let torch speak for itself again."""
    for owner, name, former in reversed(_replaced):
        restore_attribute(owner, name, former)
    _replaced.clear()


def _replace(owner: Any, name: str, value: Any) -> None:
    _replaced.append((owner, name, vars(owner).get(name, ABSENT)))
    setattr(owner, name, value)


def _explaining(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, whose failure without a GPU is explained."""

    @functools.wraps(function)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:
            if has_gpu():
                raise
        raise explanation(None if name.endswith("_lazy_init()") else name)

    return explaining


def _explaining_device(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, whose failure to make a tensor on a GPU that is not there is
    explained.
    """

    @functools.wraps(function)
    def explaining(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        try:
            return function(*args, device=device, **kwargs)
        except (RuntimeError, NotImplementedError):
            if not str(device).startswith("cuda") or has_gpu():
                raise
        raise explanation(f"{name}(device={str(device)!r})")

    return explaining


def _opening(safe_open: Callable[..., Any]) -> Callable[..., Any]:
    """`safe_open` of safetensors, as `load_file` and `load_model` call it."""

    def opening(*args: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        if (
            isinstance(device, int) or str(device).startswith("cuda")
        ) and not has_gpu():
            raise explanation(
                f"safetensors, device={device!r}; load to the host without it, then tpuport.port"
            )
        if str(device).startswith("jax"):
            raise PortError(
                "safetensors reads files to the host alone",
                where=f"safetensors, device={str(device)!r}",
                fix='leave device= out: load_state_dict and tpuport.port take tensors of the host, x.to("jax") moves '
                "a tensor, and tpuport.load reads a checkpoint to its devices",
            )
        return safe_open(*args, device=device, **kwargs)

    return opening


def explanation(name: str | None = None) -> NoCudaError:
    """The error for code that needs CUDA.

    Args:
        name: what needs it; None if only the traceback tells.
    """
    return NoCudaError(
        "this needs CUDA, and there is no GPU here",
        where=name,
        fix='leave it out: tpuport.port(model) moves a model, which takes tensors of the host; x.to("jax") moves a '
        'tensor; within tpuport.gpu_shim(device="jax"), "cuda" means the TPU',
    )
