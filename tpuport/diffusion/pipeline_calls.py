"""The class of a ported pipeline: the user's own, with a call that runs where its
models are.

Its callbacks receive tensors of the host, and may return others.
"""

import contextlib
import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tpuport import checkpoint
from tpuport.base.temporary import temporary_attributes
from tpuport.checkpoint import model_mesh
from tpuport.diffusion import schedulers
from tpuport.diffusion.guider_batching import batch_conditions
from tpuport.diffusion.mixed_devices import (
    HostCopies,
    allow_mixed,
    current_mode,
    suspend,
    to_host_tree,
)
from tpuport.diffusion.pipeline_changes import changes_weights, changing_method
from tpuport.diffusion.pipeline_checks import check_call, check_scheduler
from tpuport.diffusion.step_bar import StepBar
from tpuport.errors import PortError
from tpuport.internals.diffusers_internals import progress_bar_options

logger = logging.getLogger("tpuport")

_HOST = torch.device("cpu")
_CALLBACK_INPUTS = "callback_on_step_end_tensor_inputs"
# Methods that would move weights without the programs' noticing, or install kernels of
# GPUs.
_REFUSED_METHODS = {
    "to": "moves it",
    "enable_model_cpu_offload": "moves its models between devices",
    "enable_sequential_cpu_offload": "moves its models between devices",
    "enable_group_offload": "moves its models between devices",
    "set_lora_device": "moves weights between devices",
    "enable_xformers_memory_efficient_attention": "is for GPUs",
}


class _PortedPipeline:
    """What every ported pipeline has in addition to its own class."""

    _tpuport: Any

    @property
    def device(self) -> torch.device:
        """The host: the pipeline's arguments and results, and what it creates in
        between, are there.
        """
        return _HOST

    @property
    def _execution_device(self) -> torch.device:
        return _HOST

    def progress_bar(
        self, iterable: Any = None, total: int | None = None, **options: Any
    ) -> Any:
        """As diffusers' own, with the seconds of each step, measured when its latents
        are there.

        Args:
            iterable: what the bar counts, or None for a bar that is updated by hand.
            total: the number of steps.
            options: of the bar, as some pipelines pass them; what the user has set
                comes first.
        """
        if iterable is None and total is None:
            raise ValueError("progress_bar needs an iterable or a total")
        self._tpuport.bar = StepBar(
            iterable,
            total=total,
            **{**options, **progress_bar_options(self)},
        )
        return self._tpuport.bar


def original_class(cls: type) -> type:
    """The user's class of a ported pipeline's class; any other class itself."""
    return vars(cls).get("_tpuport_original", cls)


@functools.cache
def ported_class(cls: type) -> type:
    """A subclass of a pipeline's class, of the same name, that runs with its models on
    the devices.
    """
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_tpuport_original": cls,
        "__call__": _ported_call(cls.__call__),
    }
    for name in dir(cls):
        if name in _REFUSED_METHODS:
            body[name] = _refusing_method(name, _REFUSED_METHODS[name])
        elif changes_weights(cls, name):
            body[name] = changing_method(getattr(cls, name))
        elif name.startswith("encode_") and inspect.isfunction(
            inspect.getattr_static(cls, name)
        ):
            body[name] = _encoding_method(getattr(cls, name))
    return type(cls.__name__, (_PortedPipeline, cls), body)


def _refusing_method(name: str, effect: str) -> Callable:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise PortError(
            f"{name} {effect}, and this pipeline is ported",
            where=type(self).__name__,
            fix="tpuport.to_cpu(pipe) moves it back to the host first; tpuport.port(pipe) moves it to the devices "
            "again",
        )

    refuse.__name__ = name
    return refuse


def _encoding_method(method: Callable) -> Callable:
    """A method that a user may call directly, to encode prompts once: it then returns
    tensors of the host.
    """

    @functools.wraps(method)
    def encode(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current_mode() is not None:
            return method(self, *args, **kwargs)
        _check_models(self)
        # As in diffusers' __call__, which is decorated with no_grad; encode_prompt by
        # itself is not.
        with allow_mixed(self._tpuport.mesh), torch.no_grad():
            output = method(self, *args, **kwargs)
        return checkpoint.to_cpu(output)

    return encode


def _ported_call(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            # Python's own error names the class's method.
            return original(self, *args, **kwargs)
        _check_models(self)
        check_call(self, signature, bound.arguments)
        _wrap_callbacks(bound.arguments)
        with _running(self):
            output = original(*bound.args, **bound.kwargs)
        return checkpoint.to_cpu(output)

    return __call__


@contextlib.contextmanager
def _running(pipe: Any) -> Iterator[None]:
    """Everything that is different while a ported pipeline runs, undone however it
    ends.
    """
    state = pipe._tpuport
    with contextlib.ExitStack() as stack:
        if getattr(pipe, "scheduler", None) is not None:
            stack.enter_context(_watched_scheduler(pipe.scheduler, state))
        stack.enter_context(batch_conditions(pipe, state))
        stack.enter_context(allow_mixed(state.mesh))
        try:
            yield
        finally:
            state.bar = None


@contextlib.contextmanager
def _watched_scheduler(scheduler: Any, state: Any) -> Iterator[None]:
    """Let the scheduler step on the device or the host, as the port asked, and show its
    results to the progress bar.
    """
    if state.scheduler == "device" and not schedulers.is_installed(scheduler):
        # A scheduler that was assigned since the port.
        check_scheduler(scheduler)
        schedulers.install(scheduler)
    with temporary_attributes(scheduler, step=_WatchedStep(scheduler, state)):
        yield


class _WatchedStep:
    """Replaces `scheduler.step` while a pipeline runs. A deep copy of the scheduler
    steps with its own state.
    """

    def __init__(self, scheduler: Any, state: Any) -> None:
        self._scheduler = scheduler
        self._state = state
        if state.scheduler == "host":
            self._step = _step_on_host(type(scheduler).step.__get__(scheduler))
        else:
            self._step = (
                scheduler.step
                if schedulers.is_installed(scheduler)
                else schedulers.PortedStep(scheduler)
            )
        # Pipelines look at which arguments a scheduler's step takes.
        self.__signature__ = inspect.signature(self._step)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A step handles arrays itself, and diffusers' own has its tensors on the host.
        with suspend():
            result = self._step(*args, **kwargs)
        if self._state.bar is not None:
            # The next latents come first, in a tuple as in an output of diffusers.
            self._state.bar.watch(result[0])
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> "_WatchedStep":
        # Pipelines of clips with sound, or with a time for each frame, copy their
        # scheduler.
        return _WatchedStep(copy.deepcopy(self._scheduler, memo), self._state)


def _step_on_host(original: Callable) -> Callable:
    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = to_host_tree((args, kwargs))
        return original(*args, **kwargs)

    return step


def _check_models(pipe: Any) -> None:
    """PortError if a model of the pipeline is not the one that was ported, or is on the
    host again.
    """
    state = pipe._tpuport
    for name, module in state.components.items():
        current = getattr(pipe, name, None)
        if current is None:
            continue  # a pipeline drops a text encoder that it needs no longer
        if current is not module or model_mesh(module) is not state.mesh:
            raise PortError(
                f"its {name} was replaced, or moved, since the pipeline was ported",
                where=type(pipe).__name__,
                fix="tpuport.port(pipe, mesh=mesh) again",
            )


def _wrap_callbacks(arguments: dict[str, Any]) -> None:
    """Wrap every callback among the arguments of a pipeline's call, so that it receives
    tensors of the host.
    """
    # diffusers' own callback objects name the tensors that they need, for which the
    # pipeline looks at them.
    on_step_end: Any = arguments.get("callback_on_step_end")
    if hasattr(on_step_end, "tensor_inputs"):
        arguments[_CALLBACK_INPUTS] = on_step_end.tensor_inputs
    arguments |= {
        name: _with_host_tensors(value)
        for name, value in arguments.items()
        if name.startswith("callback") and callable(value)
    }


def _with_host_tensors(callback: Callable) -> Callable:
    # The wrapper's keyword arguments are the callback's own: pipelines only call it and
    # look at no signature.
    @functools.wraps(callback, assigned=("__doc__",), updated=())
    def call_with_host_tensors(*args: Any, **kwargs: Any) -> Any:
        copies = HostCopies()
        args, kwargs = copies.copy_tree((args, kwargs))
        output = callback(*args, **kwargs)
        if isinstance(output, dict):
            # A tensor that the callback returns untouched continues on the device,
            # without a copy.
            untouched = {
                id(host): tensor
                for tensor, host, is_written in copies
                if not is_written
            }
            for name, value in output.items():
                output[name] = untouched.get(id(value), value)
        return output

    return call_with_host_tensors
