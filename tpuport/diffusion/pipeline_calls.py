"""The class of a ported pipeline: the user's own, with a call that runs where its models are."""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tpuport import checkpoint, compat
from tpuport.checkpoint import model_mesh
from tpuport.diffusion import callbacks, guidance, mixed_devices, pipeline_checks, schedulers
from tpuport.diffusion.step_bar import StepBar
from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

_HOST = torch.device("cpu")
_BACK = (
    "tpuport.to_cpu(pipe) takes it back to the host first; tpuport.port(pipe) brings it to the devices again"
)
# Methods that would move weights or change modules behind the programs' back.
_REFUSED = {
    "to": "moves it",
    "enable_model_cpu_offload": "moves its models between devices",
    "enable_sequential_cpu_offload": "moves its models between devices",
    "enable_group_offload": "moves its models between devices",
    "save_pretrained": "reads weights that are on the devices",
    "push_to_hub": "reads weights that are on the devices",
} | dict.fromkeys(
    (
        "load_lora_weights", "unload_lora_weights", "fuse_lora", "unfuse_lora", "set_adapters", "enable_lora",
        "disable_lora", "delete_adapters", "load_ip_adapter", "unload_ip_adapter", "set_ip_adapter_scale",
        "load_textual_inversion", "unload_textual_inversion", "enable_freeu", "disable_freeu", "fuse_qkv_projections",
        "unfuse_qkv_projections", "enable_attention_slicing", "disable_attention_slicing",
        "enable_xformers_memory_efficient_attention", "disable_xformers_memory_efficient_attention",
    ),
    "changes models whose programs are made",
)  # fmt: skip


class _Ported:
    """What every ported pipeline has, before its own class."""

    _tpuport: Any

    @property
    def device(self) -> torch.device:
        """The host: what the pipeline is given, makes and gives is there."""
        return _HOST

    @property
    def _execution_device(self) -> torch.device:
        return _HOST

    def progress_bar(self, iterable: Any = None, total: int | None = None) -> Any:
        """As diffusers' own, with the seconds of each step, measured when its latents are there."""
        if iterable is None and total is None:
            raise ValueError("progress_bar needs an iterable or a total")
        self._tpuport.bar = StepBar(iterable, total=total, **getattr(self, "_progress_bar_config", {}))
        return self._tpuport.bar


def original_class(cls: type) -> type:
    """The user's class of a ported pipeline's class; any other as it is."""
    return vars(cls).get("_tpuport_original", cls)


@functools.cache
def ported_class(cls: type) -> type:
    """A subclass of a pipeline's class, of the same name, that runs with its models on the devices."""
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_tpuport_original": cls,
        "__call__": _call(cls.__call__),
    }
    for name in dir(cls):
        if name in _REFUSED:
            body[name] = _refused(name, _REFUSED[name])
        elif name.startswith("encode_") and inspect.isfunction(inspect.getattr_static(cls, name)):
            body[name] = _mixing(getattr(cls, name))
    return type(cls.__name__, (_Ported, cls), body)


def _refused(name: str, why: str) -> Callable:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise PortError(f"{name} {why}, and this pipeline is ported", where=type(self).__name__, fix=_BACK)

    refuse.__name__ = name
    return refuse


def _mixing(method: Callable) -> Callable:
    """A method that a user may call by itself, to encode prompts once: on the host it gives tensors of the host."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if mixed_devices.current() is not None:
            return method(self, *args, **kwargs)
        _check_models(self)
        with mixed_devices.mixed(self._tpuport.mesh), torch.no_grad():
            out = method(self, *args, **kwargs)
        return checkpoint.to_cpu(out)

    return called


def _call(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            return original(self, *args, **kwargs)  # it says what is wrong
        _check_models(self)
        pipeline_checks.check_call(self, signature, bound.arguments)
        callbacks.show_host(bound.arguments)
        with _running(self):
            out = original(*bound.args, **bound.kwargs)
        return checkpoint.to_cpu(out)

    return __call__


@contextlib.contextmanager
def _running(pipe: Any) -> Iterator[None]:
    """Everything that is different while a ported pipeline runs, undone however it ends."""
    state = pipe._tpuport
    with contextlib.ExitStack() as stack:
        if getattr(pipe, "scheduler", None) is not None:
            stack.enter_context(_stepping(pipe.scheduler, state))
        stack.enter_context(guidance.batched(pipe, state))
        stack.enter_context(mixed_devices.mixed(state.mesh))
        try:
            yield
        finally:
            state.bar = None


@contextlib.contextmanager
def _stepping(scheduler: Any, state: Any) -> Iterator[None]:
    """Let the scheduler step where it was asked to, and the progress bar see what it gives."""
    held = vars(scheduler).get("step")
    if state.scheduler == "device":
        if held is None:  # a scheduler that was assigned since
            pipeline_checks.check_scheduler(scheduler)
            schedulers.install(scheduler)
        own = scheduler.step
    else:
        own = _stepping_on_host(type(scheduler).step.__get__(scheduler))

    @functools.wraps(own)
    def step(*args: Any, **kwargs: Any) -> Any:
        with mixed_devices.suspended():
            result = own(*args, **kwargs)
        latents = result[0] if isinstance(result, tuple) else getattr(result, "prev_sample", None)
        if state.bar is not None and not state.bar.disable and isinstance(latents, torch.Tensor):
            state.bar.watch(latents if compat.is_ported(latents) else None)
        return result

    held = vars(scheduler).get("step")
    scheduler.step = step
    try:
        yield
    finally:
        if held is None:
            del scheduler.step
        else:
            scheduler.step = held


def _stepping_on_host(own: Callable) -> Callable:
    @functools.wraps(own)
    def step(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = mixed_devices.hosted((args, kwargs))
        return own(*args, **kwargs)

    return step


def _check_models(pipe: Any) -> None:
    """PortError where a model of the pipeline is not the one that was ported, or is on the host again."""
    for name, module in pipe._tpuport.components.items():
        current = getattr(pipe, name, None)
        if current is None:
            continue
        if current is not module or model_mesh(module) is not pipe._tpuport.mesh:
            raise PortError(
                f"its {name} was replaced, or moved, since the pipeline was ported",
                where=type(pipe).__name__,
                fix="tpuport.port(pipe, mesh=mesh) again",
            )
