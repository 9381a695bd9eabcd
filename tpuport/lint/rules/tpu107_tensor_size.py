"""TPU107: a tensor given as a size."""

from typing import Final

from tpuport.lint.abstract_values import Tensor, Value, is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import (
    has_tensor,
    is_call_of,
    is_method_of_tensor,
    operands,
)
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule, named

_FACTORIES: Final = tuple("zeros ones empty rand randn eye arange randperm".split())
# Their ends may be tensors where a device is named, their number of steps may not.
_RANGES_OF_STEPS: Final = ("linspace", "logspace")
_METHODS: Final = tuple(
    "view reshape expand repeat unflatten tile new_zeros new_ones new_empty resize_".split()
)
# Whatever they get beside the tensor that they work on is a number, a flag or a tuple
# of numbers.
_TAKING_NUMBERS: Final = tuple(
    "topk kthvalue roll unfold select diagonal diag_embed rot90 unsqueeze squeeze transpose movedim flatten cumsum "
    "permute swapaxes moveaxis flip "
    "cumprod softmax log_softmax max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d".split()
)
# Which arguments of these are sizes or counts: by position, the tensor that they work
# on being 0, and by name.
_SIZES: Final[dict[str, tuple[slice, tuple[str, ...]]]] = {
    # The second argument is the value.
    "full": (slice(1), ("size",)),
    "new_full": (slice(1, 2), ("size",)),
    **dict.fromkeys(_RANGES_OF_STEPS, (slice(2, 3), ("steps",))),
    **dict.fromkeys(("tril", "triu"), (slice(1, 2), ("diagonal",))),
    # Only the widths: what is padded is a tensor, and so may the value be.
    "pad": (slice(1, 2), ("pad",)),
    "as_strided": (slice(1, None), ("size", "stride")),
    **dict.fromkeys(
        "interpolate adaptive_avg_pool1d adaptive_avg_pool2d upsample".split(),
        (slice(1, 3), ("size",)),
    ),
}


def check(event: Call, context: Context) -> Answer:
    """Sizes of factories, of reshapes and of padding, and what else operators take as
    numbers.
    """
    numbers = _further_arguments(event) if _takes_numbers(event) else _sizes(event)
    if any(map(has_tensor, numbers)):
        return True
    if "device" in event.keywords or not any(map(is_traced, _ends(event))):
        return False
    return Hit(
        reason="without `device=` the points are computed on the host, where the ends have no values while tracing",
        remedy="name the device, `torch.linspace(start, end, steps, device=x.device)`: then the ends may be tensors",
    )


def _ends(event: Call) -> list[Value | None]:
    """The first and the last point of `torch.linspace` and `torch.logspace`."""
    if not is_call_of(event, *_RANGES_OF_STEPS):
        return []
    return [*event.args[:2], *map(event.keywords.get, ("start", "end"))]


def _sizes(event: Call) -> list[Value | None]:
    """The arguments of a call that are sizes."""
    arguments: list[Value | None] = [*operands(event)]
    keywords = event.keywords
    # The sizes of a factory are its arguments, of a method all but the tensor itself.
    if event.receiver is None and is_call_of(event, *_FACTORIES):
        return [*arguments, keywords.get("size"), keywords.get("end")]
    if is_method_of_tensor(event, *_METHODS):
        return [*event.args]
    if is_call_of(event, "randint"):
        return [*event.args, *map(keywords.get, ("low", "high", "size"))]
    if is_call_of(event, "narrow"):
        return [value for value in arguments[2:] if is_traced(value)]
    name = event.name.rpartition(".")[2]
    if name in _SIZES and is_call_of(event, name):
        positions, names = _SIZES[name]
        return [*arguments[positions], *map(keywords.get, names)]
    return []


def _takes_numbers(event: Call) -> bool:
    """Whether it is such a function of a tensor; objects of other classes have methods
    of these names too.
    """
    is_torch = event.receiver is None or isinstance(event.receiver, Tensor)
    return is_torch and is_call_of(event, *_TAKING_NUMBERS)


def _further_arguments(event: Call) -> list[Value]:
    """The arguments of a call beside the tensor that it works on."""
    named = [
        value for name, value in event.keywords.items() if name not in {"input", "out"}
    ]
    return [*operands(event)[1:], *named]


RULE = Rule(
    id="TPU107",
    name="tensor-size",
    severity=Severity.ERROR,
    summary="a tensor passed as a size, range, diagonal or count: `torch.ones(b, n)`, `torch.arange(n)`, "
    "`x.view(n, -1)`, `F.pad(x, (0, n))`, `mask.tril(n)`, `x.topk(n)`, `x.roll(n, 1)`",
    why="Sizes are part of the compiled program. A size held in a tensor has no value while the program is "
    "traced, so converting it to a Python int raises `ConcretizationTypeError` or "
    "`TracerIntegerConversionError`.",
    reason="a size, range, diagonal or count must be a number while tracing, and this one is a tensor",
    remedy="take the size from `.shape`, the configuration or an int argument; or use the largest size and a "
    "mask. `torch.arange(past, past + n)` becomes `past + torch.arange(n)`, and `tril(past)` a comparison of "
    "positions: `columns <= positions[:, None]`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, lengths: torch.Tensor):
        return torch.arange(lengths.max(), device=x.device) + x.sum()
""",
        "(torch.randn(2, 4), torch.tensor([4, 2]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, lengths: torch.Tensor):
        return torch.arange(x.shape[1], device=x.device) + x.sum()
""",
        "(torch.randn(2, 4), torch.tensor([4, 2]))",
    ),
    quiet=(
        # With a device, the ends are tensors like any other.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return torch.linspace(x.min(), x.max(), 5, device=x.device)
"""),
        # Sizes from `.shape` are Python ints while tracing.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        batch, length = x.shape
        return x.new_ones(batch, length).view(length, batch).expand(length, batch)
"""
        ),
    ),
    events=(Call,),
    calls=named(
        *_FACTORIES,
        *_RANGES_OF_STEPS,
        *_METHODS,
        *_TAKING_NUMBERS,
        *_SIZES,
        "randint",
        "narrow",
    ),
    check=check,
)
