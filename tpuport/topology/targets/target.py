"""What is compiled, and the options that say at which sizes. Sizes are checked without torch, which takes seconds."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tpuport.errors import PortError
from tpuport.topology.generation_tasks import Decode, Prefill

if TYPE_CHECKING:
    import torch

TASKS: Final = ("prefill", "decode", "forward")
_NUMBERS: Final = ("batch", "length", "max_cache_len", "frames")


@dataclasses.dataclass(frozen=True)
class Target:
    """One program to compile: what `tpuport.topology.compile_for` needs.

    Attributes:
        name: of the program among those of its target: "llama-2-7b decode", "transformer".
        build: makes the module with parameters that take no memory; each call makes a new one.
        inputs: arguments of one call, tensors on the meta device; or Prefill or Decode.
        unit: what a call makes, and how many: "tokens", "images", "frames" or "steps" of denoising.
        dtype: of floating-point parameters; None keeps theirs, as for one's own code, which is built in its dtype.
        kind: "causal-lm", "encoder", "denoiser", "vae", or "code" for someone's own.
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
        for side in self.image_size or ():
            sizes.update({"image_size": min(side, sizes.get("image_size") or side)})
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise PortError(f"{name} is {value}", where=name, fix="a number from 1 up")
        if self.dtype is not None and not _is_floating(self.dtype):
            raise PortError(
                f"weights cannot be {self.dtype}", where="dtype", fix="a floating dtype, such as bfloat16"
            )

    def given(self) -> tuple[str, ...]:
        """The names of the sizes, and the task, that the user said."""
        names = (*_NUMBERS, "image_size", "task")
        return tuple(name for name in names if getattr(self, name) is not None)

    def check_apply(self, applicable: tuple[str, ...], what: str) -> None:
        """PortError where an option was given that is none of `applicable`."""
        if self.inputs is not None:
            if stray := [name for name in self.given() if name != "task"]:
                raise PortError(
                    f"{stray[0]} is given together with inputs, which decide it",
                    where=stray[0], fix=f"drop it, or let {self.inputs} make inputs of that size",
                )  # fmt: skip
            return
        for name in self.given():
            if name not in applicable:
                raise PortError(
                    f"{name} does not apply to {what}", where=name,
                    fix=f"what does: {', '.join(applicable)}" if applicable else "leave it out",
                )  # fmt: skip

    def restricted(self, applicable: tuple[str, ...]) -> "Options":
        """The same without the sizes that are none of `applicable`."""
        return dataclasses.replace(self, **{name: None for name in self.given() if name not in applicable})


def _is_floating(dtype: str) -> bool:
    from tpuport.checkpoint.device_layout import as_torch_dtype

    kind = as_torch_dtype(dtype)
    return kind is not None and kind.is_floating_point


def parsed_image_size(given: Any) -> tuple[int, int] | None:
    """(height, width) of "720x1280", of 1024 or "1024", which is square, or of a pair."""
    if given is None:
        return None
    parts = given.lower().split("x") if isinstance(given, str) else given
    if isinstance(parts, int):
        parts = [parts]
    try:
        numbers = [int(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 2):
        raise PortError(
            f"{given!r} is no image size", where="image_size", fix="HEIGHTxWIDTH, or one number for a square"
        )
    return numbers[0], numbers[-1]


def empty(*shape: int, dtype: "torch.dtype | str" = "bfloat16") -> "torch.Tensor":
    """A tensor of the meta device, which has a shape and no values."""
    import torch

    from tpuport.checkpoint.device_layout import as_torch_dtype

    kind = as_torch_dtype(dtype)
    return torch.empty(shape, dtype=kind, device="meta")
