"""What is compiled, and the options that determine its sizes.

Needs no torch, which is slow to import, except for making a tensor.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tpuport.errors import PortError
from tpuport.topology.generation_tasks import Decode, Prefill

if TYPE_CHECKING:
    import torch

TASKS: Final = ("prefill", "decode", "generate", "forward")
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NUMBERS: Final = ("batch", "length", "max_cache_len", "frames")


@dataclasses.dataclass(frozen=True)
class Target:
    """One program to compile: what `tpuport.topology.compile_for` needs.

    Attributes:
        name: of the program among those of its target: "llama-2-7b decode",
            "transformer".
        build: makes a new module each time; its parameters take no memory.
        inputs: arguments of one call, tensors on the meta device; or Prefill or Decode.
        unit: what a call makes, and how many: "tokens", "images", "frames" or "steps"
            of denoising.
        dtype: of floating-point parameters; None keeps theirs, as for the user's own
            code, which is built in its dtype.
        kind: "causal-lm", "encoder", "denoiser", "vae", or "code" for the user's own.
        notes: what was chosen that the user did not say, a sentence each.
        product: of a denoiser, what its steps make, for people: "an image of
            1024x1024".
        rows: of a call; is_distilled: whether a denoiser takes the scale of guidance as
            an input.
    """

    name: str
    build: "Callable[[], torch.nn.Module]"
    inputs: Mapping[str, Any] | Prefill | Decode
    unit: tuple[str, float] | None = None
    dtype: str | None = None
    kind: str = "code"
    notes: tuple[str, ...] = ()
    product: str = ""
    rows: int = 1
    is_distilled: bool = False


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user said; None for what was left open.

    Attributes:
        task: one of `TASKS`; batch: rows of a call; length: tokens of a prompt or text.
        max_cache_len: positions of the cache; kv_cache: "int8", or None for the model's
            dtype.
        image_size: height and width in pixels; frames: of a video.
        dtype: of floating-point weights, by torch's name; inputs: "module:function"
            that makes the inputs.
        component: of a pipeline; trust_remote_code: whether Python code in the
            directory may run.
    """

    task: str | None = None
    batch: int | None = None
    length: int | None = None
    max_cache_len: int | None = None
    kv_cache: str | None = None
    image_size: tuple[int, int] | None = None
    frames: int | None = None
    dtype: str | None = None
    inputs: str | None = None
    component: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.task not in (None, *TASKS):
            raise PortError(
                f"there is no task {self.task!r}",
                where="task",
                fix=f"one of {', '.join(TASKS)}",
            )
        sizes = [(name, getattr(self, name)) for name in _NUMBERS]
        sizes += itertools.product(["image_size"], self.image_size or ())
        for name, size in sizes:
            if size is not None and size < 1:
                raise PortError(
                    f"{name} is {size}", where=name, fix="a number of at least 1"
                )
        # Quantised weights are not supported, and no other weights are integers.
        if self.dtype is not None and not _is_floating(self.dtype):
            raise PortError(
                f"weights cannot be {self.dtype}",
                where="dtype",
                fix="a floating dtype, such as bfloat16",
            )

    @property
    def rows(self) -> int:
        """Rows of a call."""
        return self.batch or 1

    def stray(self, applicable: Collection[str]) -> list[str]:
        """Of the sizes, the cache's format and the task, the names that the user gave
        and that are not `applicable`.
        """
        names = (*_NUMBERS, "kv_cache", "image_size", "task")
        return [
            name
            for name in names
            if getattr(self, name) is not None and name not in applicable
        ]

    def check_apply(self, applicable: tuple[str, ...], what: str) -> None:
        """PortError if an option was given that is not one of `applicable`.

        Args:
            what: that is to be compiled, for the message.
        """
        if self.inputs is not None:
            self._check_inputs_decide()
            return
        for name in self.stray(applicable):
            fix = f"what does: {', '.join(applicable)}"
            raise PortError(f"{name} does not apply to {what}", where=name, fix=fix)

    def _check_inputs_decide(self) -> None:
        """PortError for a size beside a function of the user's that makes the
        inputs.
        """
        for name in self.stray(["task"]):
            raise PortError(
                f"{name} is given together with inputs, which decide it",
                where=name, fix=f"drop it, or let {self.inputs} make inputs of that size",
            )  # fmt: skip

    def restrict(self, applicable: tuple[str, ...]) -> "Options":
        """The same without the sizes that are not in `applicable`."""
        return dataclasses.replace(self, **dict.fromkeys(self.stray(applicable)))


def _is_floating(name: str) -> bool:
    # It imports torch, and most calls name no dtype.
    from tpuport.checkpoint.device_layout import as_torch_dtype

    dtype = as_torch_dtype(name)
    return dtype is not None and dtype.is_floating_point


def parse_image_size(size: Any) -> tuple[int, int] | None:
    """(height, width) of "720x1280", of 1024 or "1024", which is square, or of a
    pair.
    """
    match size:
        case None:
            return None
        case str():
            sides = size.lower().split("x")
        case int():
            sides = [size]
        case _:
            sides = size
    # One side stands for both.
    try:
        height, *others = map(int, sides)
        [width] = others or [height]
    except (TypeError, ValueError):
        raise PortError(
            f"{size!r} is not an image size",
            where="image_size", fix="HEIGHTxWIDTH, or one number for a square",
        ) from None  # fmt: skip
    return height, width


def empty(*shape: int, dtype: "torch.dtype | str" = "bfloat16") -> "torch.Tensor":
    """A tensor of the meta device, which has a shape and no values."""
    import torch

    from tpuport.checkpoint.device_layout import as_torch_dtype

    return torch.empty(shape, dtype=as_torch_dtype(dtype), device="meta")


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that a call must give, without a method's "self"."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (
        ValueError
    ):  # Python cannot tell the signature of some functions that are written in C
        return []
    # `*args` and `**kwargs` have no default either, and need no value.
    named = [parameter for parameter in parameters if parameter.kind not in _VARIADIC]
    required = [
        parameter.name for parameter in named if parameter.default is parameter.empty
    ]
    return [name for name in required if name != "self"]


def first_integer(config: Mapping[str, Any], fields: Iterable[str]) -> int | None:
    """The value of the first of these fields that is an integer in a config; None if
    there is none.
    """
    values = map(config.get, fields)
    return next((value for value in values if isinstance(value, int)), None)
