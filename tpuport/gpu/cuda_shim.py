"""A shim under which code written for a GPU can be imported, and its models built,
without one: `tpuport.gpu_shim`.

It is for research repositories that query `torch.cuda`, put tensors on "cuda", or
import attention kernels while they are imported or their models are built.
`whitelist()` lists what it answers; everything else is unchanged.
"""

import contextlib
import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tpuport import compat
from tpuport.base.temporary import ABSENT, restore_attribute
from tpuport.errors import PortError
from tpuport.gpu import cuda_devices, process_groups, torch_cuda
from tpuport.gpu.replaced_calls import Call, Calls
from tpuport.gpu.stand_ins import PACKAGES, Finder

_lock = threading.RLock()
_current: "GpuShim | None" = None


class GpuShim:
    """The shim, off until it is entered or enabled; see `gpu_shim`."""

    def __init__(
        self,
        allow: Iterable[str] | Mapping[str, Any] = (),
        available: bool = False,
        device: str = "cpu",
    ) -> None:
        if device not in cuda_devices.PLACES:
            raise PortError(
                f'"cuda" cannot mean {device!r}',
                where="device",
                fix='"cpu", the host, to build models there; or "jax", the TPU',
            )
        self._device = device
        self._calls = Calls()
        if not isinstance(allow, Mapping):
            allow = dict.fromkeys(allow)
        self._allow = dict(allow)
        self._available = available
        # What `disable` does, the last change first.
        self._undo = contextlib.ExitStack()

    @property
    def calls(self) -> list[Call]:
        """The calls rewritten so far, each once per calling line."""
        return list(self._calls.counts)

    def enable(self) -> "GpuShim":
        """Switch the shim on: for this thread as to new tensors, for the process as to
        the rest.

        Calling it again does nothing.

        Raises:
            PortError: another shim is on, or `allow` names something that does not
                exist.
        """
        global _current
        with _lock:
            if _current is self:
                return self
            if _current is not None:
                raise PortError(
                    "a GPU shim is on already",
                    where="tpuport.gpu_shim",
                    fix="leave it first",
                )
            _current = self
            # `_current` is set first, because `disable` undoes only the current shim.
            try:
                self._install()
            except BaseException:
                self.disable()
                raise
        return self

    def disable(self) -> None:
        """Restore everything. References to functions of the shim call the originals
        then; stand-ins stay.
        """
        global _current
        with _lock:
            if _current is not self:
                return
            self._calls.active = False
            self._undo.close()
            _current = None

    def __enter__(self) -> "GpuShim":
        return self.enable()

    def __exit__(self, *error: object) -> None:
        self.disable()

    def _install(self) -> None:
        if self._device == "jax":
            compat.environment()
        functions = {name: value for name, value in self._allow.items() if ":" in name}
        packages = [name for name in self._allow if ":" not in name]
        self._answer_torch()
        self._answer_safetensors()
        self._answer_distributed()
        for name, value in functions.items():
            self._answer_allowed(name, value)
        finder = Finder((*PACKAGES, *packages), self._calls.note)
        finder.install()
        self._undo.callback(finder.uninstall)
        mode = cuda_devices.Devices(self._calls, self._device)
        mode.__enter__()
        # Not its `__exit__`, which would take whatever mode was entered last.
        self._undo.callback(cuda_devices.remove, mode)
        self._calls.active = True

    def _answer_torch(self) -> None:
        answers, classes = dict(torch_cuda.CUDA), dict(torch_cuda.CUDA_CLASSES)
        if self._available:
            answers["is_available"] = lambda: True
        if self._device == "jax":
            # It imports jax, which most uses of the shim do without.
            from tpuport.gpu import tpu_answers

            answers |= tpu_answers.CUDA
            classes |= tpu_answers.CUDA_CLASSES
        for name, answer in answers.items():
            self._function("torch.cuda", name, answer)
        for name, cls in classes.items():
            self._put(
                "torch.cuda",
                name,
                _noting_subclass(cls, f"torch.cuda.{name}", self._calls),
            )
        for name in torch_cuda.TENSOR_TYPES:
            self._put("torch.cuda", f"{name}Tensor", getattr(torch, f"{name}Tensor"))
        for name in torch_cuda.SDP:
            self._function("torch.backends.cuda", name, torch_cuda.nothing)
        for name, answer in cuda_devices.answers().items():
            self._put("torch", name, answer(self._calls, self._device))
        # Autocast of a GPU is autocast of the device as soon as torchax is there.
        if self._device == "cpu":
            for name, cls in cuda_devices.autocast_classes(self._calls).items():
                self._put("torch", name, cls)
        self._put("torch", "Generator", cuda_devices.generator_class(self._calls))

    def _answer_safetensors(self) -> None:
        if importlib.util.find_spec("safetensors") is None:
            return
        self._put("safetensors.torch", "safe_open", cuda_devices.opening_safetensors())

    def _answer_distributed(self) -> None:
        if not torch.distributed.is_available() or torch.distributed.is_initialized():
            return  # a real process group answers for itself
        for module in process_groups.MODULES:
            importlib.import_module(module)
        for name, answer in process_groups.Distributed().answers().items():
            self._function("torch.distributed", name, answer)
        for module, name in process_groups.WRAPPERS.items():
            self._put(module, name, process_groups.Wrapped)

    def _answer_allowed(self, name: str, value: Any) -> None:
        module, _, path = name.partition(":")
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise PortError(
                f"allow names {name!r}, whose module cannot be imported: {error}",
                where="allow",
            ) from error
        if value is None or callable(value):
            self._function(module, path, value or torch_cuda.nothing)
        else:
            self._put(module, path, value)

    def _function(self, module: str, path: str, answer: Callable[..., Any]) -> None:
        """Replace a function, if it exists, while the shim is on."""
        holder, name = _holder(module, path)
        former = getattr(holder, name, None)
        # Versions of torch differ in what they have.
        if former is None:
            return
        calls = self._calls
        qualified = f"{module}.{path}"

        @functools.wraps(former, updated=())
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not calls.active:
                return former(*args, **kwargs)
            result = answer(*args, **kwargs)
            calls.note(qualified, _describe(result))
            return result

        self._put(module, path, replacement)

    def _put(self, module: str, path: str, value: Any) -> None:
        holder, name = _holder(module, path)
        self._undo.callback(
            _restore, holder, name, vars(holder).get(name, ABSENT), value
        )
        setattr(holder, name, value)


def _restore(holder: Any, name: str, former: Any, ours: Any) -> None:
    # The imported code may have replaced it since, and its own must stay.
    if vars(holder).get(name) is not ours:
        return
    restore_attribute(holder, name, former)


def _noting_subclass(cls: type, name: str, calls: Calls) -> type:
    """A subclass of the same name that notes when it is instantiated."""

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        calls.note(name, "one that does nothing")

    return type(
        cls.__name__,
        (cls,),
        {"__init__": initialize, "__doc__": cls.__doc__, "__module__": cls.__module__},
    )


def _describe(value: Any) -> str:
    """A value in a line of the log."""
    if value is None:
        return "nothing"
    text = repr(value)
    # A record of device properties would fill the line.
    if len(text) > 60 or "\n" in text:
        return type(value).__name__
    return text


def _holder(module: str, path: str) -> tuple[Any, str]:
    holder: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    return holder, name


def gpu_shim(
    *,
    allow: Iterable[str] | Mapping[str, Any] = (),
    available: bool = False,
    device: str = "cpu",
) -> GpuShim:
    """Let code that was written for a GPU be imported, and its models be built, without
    one.

    Use it in a `with` block, or between `enable()` and `disable()`. Meanwhile the
    functions of `torch.cuda` and `torch.distributed` that would fail answer as one GPU
    and one process would; tensors for a CUDA device are created on the CPU; autocast of
    a CUDA device is switched off; meshes, DTensors and wrappers of torch.distributed
    are those of one device; and imports of attention packages that are not installed
    give stand-ins, whose attention is `F.scaled_dot_product_attention`.
    `tpuport.gpu.whitelist()` lists all of it. Everything else behaves as
    before. Afterwards everything is restored, also after an exception. Each rewritten
    call is logged to the logger "tpuport" with its line, and recorded in `calls`.

    Args:
        allow: what else to answer. "package" is a package that is replaced by a
            stand-in if it is not installed; "module:name" is a function that then does
            nothing. A mapping gives the replacement of a "module:name": a function, or
            any value.
        available: what `torch.cuda.is_available()` returns, for code that insists on a
            GPU.
        device: what "cuda" means. "cpu", the host, is for building models, which
            `tpuport.port` moves. "jax" is the TPU, for scripts: tensors and models go
            to its first device, `torch.cuda.synchronize` and events wait for it, memory
            is its memory, autocast is followed, and `torch.cuda.is_available()` is
            True.

    Raises:
        PortError: `device` is neither.
    """
    return GpuShim(allow, available, device)


def whitelist() -> dict[str, tuple[str, ...]]:
    """What the shim answers for, by kind."""
    functions = [
        f"torch.cuda.{name}" for name in (*torch_cuda.CUDA, *torch_cuda.CUDA_CLASSES)
    ]
    functions += [f"torch.cuda.{name}Tensor" for name in torch_cuda.TENSOR_TYPES]
    functions += [f"torch.backends.cuda.{name}" for name in torch_cuda.SDP]
    functions += [f"torch.{name}" for name in cuda_devices.answers()]
    functions += [
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast",
        "torch.Generator",
    ]
    functions += [
        f"torch.distributed.{name}" for name in process_groups.Distributed().answers()
    ]
    functions += [
        f"{module}.{name}" for module, name in process_groups.WRAPPERS.items()
    ]
    devices = (
        "Tensor.cuda",
        "Tensor.to",
        "Tensor.type",
        "Tensor.pin_memory",
        "pin_memory=",
        "device=",
    )
    return {
        "functions": tuple(sorted(functions)),
        "devices": devices,
        "imports": tuple(sorted(PACKAGES)),
    }
