"""A component of a pipeline whose `forward` is a compiled program: the module stays the
user's, and so do its calls.

`module.forward` is replaced on the instance, as that of any ported model
(`compilation.model_calls`). Calls from outside run the program for
their shapes; while something is being traced (the whole loop as a program, a function
of the user's) the original forward runs and becomes part of that. Lists among its
arguments that it changes (a video VAE's caches) are changed for the caller. If a
forward cannot be a program, because hooks inside it have state, it runs operation by
operation on the device, which is logged once.

Of an autoencoder the encoder and the decoder are programs, and its tiling and slicing
stay diffusers' own. With either, a program sees a tile or a sample at a time, and each
result goes to the host at once, where diffusers blends and joins them: the memory on
the device is bounded by a tile. Otherwise the whole decode is a program; if that is
large, the log recommends tiling.
"""

import functools
import logging
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tpuport import compilation, trace_errors
from tpuport.checkpoint import forget_mesh, model_mesh, port_count, record_port
from tpuport.compat.tracing import is_tracing
from tpuport.compilation.model_calls import (
    MakeCallOnHost,
    ModelCall,
    compile_call,
    restore_call,
)
from tpuport.diffusion.mixed_devices import (
    allow_mixed,
    current_mode,
    has_tracers,
    suspend,
    to_host_tree,
    upload_tree,
)
from tpuport.diffusion.pipeline_checks import check_caller
from tpuport.errors import PortError
from tpuport.internals.diffusers_internals import hook_names

logger = logging.getLogger("tpuport")

# Elements of a decoder's result from which on tiling is recommended: 33 frames of 720 x
# 1280.
_LARGE_RESULT = 3 * 33 * 720 * 1280
# By the name of diffusers' hook, what it is.
_REFUSED_HOOKS = {"text_kv_cache_block": "the text cache (TextKVCacheConfig)"}
_AUTOENCODER_METHODS = ("encode", "decode")
# What diffusers sets on an autoencoder that cuts its input into tiles, samples or
# frames.
_PIECEWISE_FLAGS = (
    "use_tiling",
    "use_slicing",
    "use_framewise_decoding",
    "use_framewise_encoding",
)
# The alternative to changing the code of a component that cannot be traced.
_ON_HOST = "leave this component on the host: tpuport.port(pipe, components=[...]) without its name"


class ComponentCall(ModelCall):
    """The call of a component: one program for each set of shapes.

    Attributes:
        interceptor: a function `(run, args, kwargs) -> output` that is called instead
            of `run(args, kwargs)`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        make_on_host: MakeCallOnHost | None = None,
        original: Callable | None = None,
    ) -> None:
        super().__init__(module, make_on_host, original)
        self.interceptor: Callable = lambda run, args, kwargs: run(args, kwargs)
        # Once for each reason, and not in every call.
        self._log = functools.cache(self._log_reason)

    @property
    def scan_layers(self) -> bool:
        """Whether identical blocks run in a loop, as in `tpuport.compile`."""
        return self.compiled.scan_layers is True

    @scan_layers.setter
    def scan_layers(self, enabled: bool) -> None:
        # None and not False: blocks that are stacked already then still run in a loop.
        self.replaced.set_scan_layers(True if enabled else None)

    @property
    def program(self) -> compilation.FunctionPrograms:
        """The programs underneath; `program.compilations` counts."""
        return self.compiled.program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments, of the shapes that the module's own
        forward documents.

        Raises:
            PortError: the weights are not on the device any more, or the forward cannot
                be traced; the message names the line. Or a pipeline that is not ported
                called it.
        """
        if is_tracing() or has_tracers((args, kwargs)):
            return self.original(*args, **kwargs)
        check_caller(self.module)
        return self.interceptor(self.run, args, kwargs)

    def run(self, args: tuple, kwargs: dict) -> Any:
        """A call of the program, past the interceptor."""
        if self._can_compile():
            return self._run_program(
                *compilation.prepare_arguments(self.module, args, kwargs)
            )
        with allow_mixed(model_mesh(self.module)):
            return self.original(*args, **kwargs)

    def _run_program(self, args: tuple, kwargs: dict) -> Any:
        arguments = _UploadedArguments(args, kwargs)
        with (
            suspend(),
            trace_errors.explained(
                self.module, catch=trace_errors.is_of_code, alternative=_ON_HOST
            ),
        ):
            output = self.compiled(*arguments.args, **arguments.kwargs)
        arguments.write_back()
        return output

    def _can_compile(self) -> bool:
        """Whether this call can be a program."""
        _, *parts = self.module.modules()
        hooked = next(filter(hook_names, parts), None)
        if hooked is None:
            return True
        _check_hooks(hooked, type(self.module).__name__)
        self._log(f"while a {type(hooked).__name__} in it has hooks of diffusers")
        return False

    def _log_reason(self, reason: str) -> None:
        name = type(self.module).__name__
        logger.info(
            "%s runs on the device operation by operation, not as one program: %s",
            name,
            reason,
        )


class _UploadedArguments:
    """The arguments of a call with their host tensors on the device; what the call
    changes is changed for the caller.

    A list or dictionary with a tensor of the host is copied, any other one is the
    caller's own, which the compiled function changes itself.

    Attributes:
        args, kwargs: for the compiled function.
    """

    def __init__(self, args: tuple, kwargs: dict) -> None:
        # By the id of the caller's container, so that one that is passed twice is one
        # in the call, too.
        self._copies: dict[int, _CopiedContainer] = {}
        self.args = tuple(map(self._upload, args))
        self.kwargs = {name: self._upload(value) for name, value in kwargs.items()}

    def _upload(self, value: Any) -> Any:
        if type(value) not in (list, dict):
            return upload_tree(value)
        if id(value) in self._copies:
            return self._copies[id(value)].copy
        copy: Any
        if isinstance(value, list):
            copy = list(map(self._upload, value))
        else:
            copy = {name: self._upload(item) for name, item in value.items()}
        copied = _CopiedContainer(value, copy, _items(copy))
        if all(map(operator.is_, _items(value).values(), copied.before.values())):
            return value
        self._copies[id(value)] = copied
        return copy

    def write_back(self) -> None:
        """Change the caller's containers as the call has changed their copies."""
        for container, copy, before in self._copies.values():
            after, own = _items(copy), _items(container)
            same = {
                key: own[key]
                for key in after.keys() & before.keys()
                if after[key] is before[key]
            }
            if len(same) == len(before) == len(after):
                continue
            items = {key: same.get(key, item) for key, item in after.items()}
            if isinstance(container, list):
                container[:] = items.values()
            else:
                container.clear()
                container.update(items)


class _CopiedContainer(NamedTuple):
    """The caller's list or dictionary, its copy for a call, and the items of the copy
    before the call.
    """

    container: Any
    copy: Any
    before: dict[Any, Any]


def _items(container: list | dict) -> dict[Any, Any]:
    """The items of a list by their position, those of a dictionary by their key."""
    return (
        dict(enumerate(container)) if isinstance(container, list) else dict(container)
    )


def _check_hooks(part: torch.nn.Module, model_name: str) -> None:
    """PortError if a hook would silently give another result on the device than on the
    host.
    """
    for name in hook_names(part):
        if name in _REFUSED_HOOKS:
            raise PortError(
                f"{_REFUSED_HOOKS[name]} of its {type(part).__name__} tells prompts apart by the addresses of their "
                "embeddings, and tensors on the device have none",
                where=model_name,
                fix="pipe.transformer.disable_cache()",
            )


class _PartCall(ComponentCall):
    """The encoder or decoder of an autoencoder."""

    autoencoder: torch.nn.Module
    _followed_count = 0
    _has_recommended_tiling = False

    def follow_autoencoder(self) -> None:
        """Record the autoencoder's mesh as the part's; programs are compiled again if
        it was ported again.
        """
        count, mesh = port_count(self.autoencoder), model_mesh(self.autoencoder)
        if mesh is not None and count != self._followed_count:
            self._followed_count = count
            record_port(self.module, mesh)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `ComponentCall`; tensors of the host if the autoencoder works piece by
        piece.
        """
        if not is_tracing():
            self.follow_autoencoder()
        output = super().__call__(*args, **kwargs)
        if works_in_pieces(self.autoencoder):
            # Outside of a pipeline, the user's own code gets what the programs give.
            return output if current_mode() is None else to_host_tree(output)
        is_large = isinstance(output, torch.Tensor) and output.numel() >= _LARGE_RESULT
        if is_large and not self._has_recommended_tiling:
            self._has_recommended_tiling = True
            logger.warning(
                "%s made %s in one piece; `vae.enable_tiling()` bounds the memory that this takes",
                type(self.module).__name__, list(output.shape),
            )  # fmt: skip
        return output


def works_in_pieces(vae: torch.nn.Module) -> bool:
    """Whether diffusers cuts this autoencoder's input into tiles, samples or frames."""
    return any(getattr(vae, flag, False) for flag in _PIECEWISE_FLAGS)


def is_autoencoder(module: torch.nn.Module) -> bool:
    """Whether a component has an encoder or decoder and the methods around them."""
    methods = [getattr(module, name, None) for name in _AUTOENCODER_METHODS]
    return all(map(callable, methods)) and bool(autoencoder_parts(module))


def autoencoder_parts(vae: torch.nn.Module) -> list[torch.nn.Module]:
    """The encoder and the decoder, or the only one that there is."""
    parts = [getattr(vae, "encoder", None), getattr(vae, "decoder", None)]
    return [part for part in parts if isinstance(part, torch.nn.Module)]


def compile_parts(vae: torch.nn.Module) -> None:
    """Let the parts of a ported autoencoder run as programs, and its methods take
    tensors of the host.
    """
    for part in autoencoder_parts(vae):
        forward = compile_call(part, call_class=_PartCall)
        # A part that is compiled as a component of its own keeps that forward.
        if isinstance(forward, _PartCall):
            forward.autoencoder = vae
            forward.follow_autoencoder()
    for name in _AUTOENCODER_METHODS:
        if name not in _replaced_methods(vae):
            setattr(vae, name, _with_mixed_devices(vae, getattr(vae, name)))


def restore_parts(vae: torch.nn.Module) -> None:
    """Undo `compile_parts`."""
    for part in autoencoder_parts(vae):
        restore_call(part)
        forget_mesh(part)
    for name in _replaced_methods(vae):
        delattr(vae, name)


def _replaced_methods(vae: torch.nn.Module) -> list[str]:
    attributes = vars(vae)
    return [
        name
        for name in _AUTOENCODER_METHODS
        if hasattr(attributes.get(name), "tpuport_original")
    ]


def _with_mixed_devices(vae: torch.nn.Module, method: Callable) -> Callable:
    """A method whose code may meet tensors of host and device alike."""

    @functools.wraps(method)
    def run_method(*args: Any, **kwargs: Any) -> Any:
        check_caller(vae)
        with allow_mixed(model_mesh(vae)):
            return method(*args, **kwargs)

    run_method.tpuport_original = method  # pyright: ignore[reportAttributeAccessIssue]
    return run_method
