"""What is compiled, and the options that determine its sizes.

Needs no torch, which is slow to import, except for making a tensor.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tpuport.errors import PortError
from tpuport.topology.generation_tasks import Decode, Prefill

if TYPE_CHECKING:
    import torch

TASKS: Final = ("prefill", "decode", "forward")
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NUMBERS: Final = ("batch", "length", "max_cache_len", "frames")


@dataclasses.dataclass(frozen=True)
class Target:
    """One program to compile: what `tpuport.topology.compile_for` needs.

    Attributes:
        name: of the program among those of its target: "llama-2-7b decode", "transformer".
        build: makes a new module each time; its parameters take no memory.
        inputs: arguments of one call, tensors on the meta device; or Prefill or Decode.
        unit: what a call makes, and how many: "tokens", "images", "frames" or "steps" of denoising.
        dtype: of floating-point parameters; None keeps theirs, as for the user's own code, which is built in its dtype.
        kind: "causal-lm", "encoder", "denoiser", "vae", or "code" for the user's own.
        notes: what was chosen that the user did not say, a sentence each.
    """

    name: str
    build: "Callable[[], torch.nn.Module]"
    inputs: Mapping[str, Any] | Prefill | Decode
    unit: tuple[str, float] | None = None
    dtype: str | None = None
    kind: str = "code"
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user said; None for what was left open.

    Attributes:
        task: one of `TASKS`; batch: rows of a call; length: tokens of a prompt or text.
        max_cache_len: positions of the cache; image_size: height and width in pixels; frames: of a video.
        dtype: of floating-point weights, by torch's name; inputs: "module:function" that makes the inputs.
        component: of a pipeline; trust_remote_code: whether Python code in the directory may run.
    """

    task: str | None = None
    batch: int | None = None
    length: int | None = None
    max_cache_len: int | None = None
    image_size: tuple[int, int] | None = None
    frames: int | None = None
    dtype: str | None = None
    inputs: str | None = None
    component: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise PortError(f"there is no task {self.task!r}", where="task", fix=f"one of {', '.join(TASKS)}")
        sizes = {name: getattr(self, name) for name in _NUMBERS}
        sizes["image_size"] = min(self.image_size) if self.image_size else None
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise PortError(f"{name} is {size}", where=name, fix="a number of at least 1")
        if self.dtype is not None and not _is_floating(self.dtype):
            raise PortError(
                f"weights cannot be {self.dtype}", where="dtype", fix="a floating dtype, such as bfloat16"
            )

    def specified(self) -> tuple[str, ...]:
        """The names of the sizes that the user gave, and of the task."""
        names = (*_NUMBERS, "image_size", "task")
        return tuple(name for name in names if getattr(self, name) is not None)

    def check_apply(self, applicable: tuple[str, ...], what: str) -> None:
        """PortError if an option was given that is not one of `applicable`.

        Args:
            what: that is to be compiled, for the message.
        """
        if self.inputs is not None:
            self._check_inputs_decide()
            return
        for name in self.specified():
            if name not in applicable:
                names = ", ".join(applicable)
                fix = f"what does: {names}" if names else "leave it out"
                raise PortError(f"{name} does not apply to {what}", where=name, fix=fix)

    def _check_inputs_decide(self) -> None:
        """PortError for a size beside a function of the user's that makes the inputs."""
        for name in self.specified():
            if name != "task":
                raise PortError(
                    f"{name} is given together with inputs, which decide it",
                    where=name, fix=f"drop it, or let {self.inputs} make inputs of that size",
                )  # fmt: skip

    def restrict(self, applicable: tuple[str, ...]) -> "Options":
        """The same without the sizes that are not in `applicable`."""
        stray = {name: None for name in self.specified() if name not in applicable}
        return dataclasses.replace(self, **stray)


def _is_floating(name: str) -> bool:
    from tpuport.checkpoint.device_layout import as_torch_dtype

    dtype = as_torch_dtype(name)
    return dtype is not None and dtype.is_floating_point


def parse_image_size(size: Any) -> tuple[int, int] | None:
    """(height, width) of "720x1280", of 1024 or "1024", which is square, or of a pair."""
    if size is None:
        return None
    sides = [size]
    if isinstance(size, str):
        sides = size.lower().split("x")
    elif not isinstance(size, int):
        sides = size
    try:
        height, *rest = [int(side) for side in sides]
    except (TypeError, ValueError):
        raise _not_an_image_size(size) from None
    if len(rest) > 1:
        raise _not_an_image_size(size)
    return height, rest[0] if rest else height


def _not_an_image_size(size: Any) -> PortError:
    return PortError(
        f"{size!r} is not an image size", where="image_size", fix="HEIGHTxWIDTH, or one number for a square"
    )


def empty(*shape: int, dtype: "torch.dtype | str" = "bfloat16") -> "torch.Tensor":
    """A tensor of the meta device, which has a shape and no values."""
    import torch

    from tpuport.checkpoint.device_layout import as_torch_dtype

    return torch.empty(shape, dtype=as_torch_dtype(dtype), device="meta")


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that a call must give, without a method's "self"."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # Python cannot tell the signature of some functions that are written in C
        return []
    without_default = [parameter for parameter in parameters if parameter.default is parameter.empty]
    return [
        parameter.name
        for parameter in without_default
        if parameter.kind not in _VARIADIC and parameter.name != "self"
    ]


def first_integer(config: Mapping[str, Any], fields: Iterable[str]) -> int | None:
    """The value of the first of these fields that is an integer in a config; None if there is none."""
    values = map(config.get, fields)
    return next((value for value in values if isinstance(value, int)), None)
