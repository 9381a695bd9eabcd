"""TPU107: a tensor where a size belongs."""

from tpuport.lint.abstract_values import Tensor
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import holds_tensor, is_call_of, operands
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_FACTORIES = ("zeros", "ones", "empty", "rand", "randn", "eye")
_RANGES = ("arange", "linspace", "logspace", "randperm")
_METHODS = (
    "view",
    "reshape",
    "expand",
    "repeat",
    "unflatten",
    "tile",
    "new_zeros",
    "new_ones",
    "new_empty",
    "resize_",
)


def check(event: Call, context: Context) -> Hit | None:
    """Sizes of factories, of reshapes and of padding."""
    given = operands(event)
    if is_call_of(event, *_FACTORIES, *_RANGES) and event.receiver is None:
        wrong = any(
            holds_tensor(value) for value in [*given, event.keywords.get("size"), event.keywords.get("end")]
        )
    elif is_call_of(event, "full", "new_full"):
        wrong = holds_tensor(event.args[0]) if event.args else False
    elif is_call_of(event, "randint"):
        wrong = holds_tensor(event.args[-1]) if event.args else False
    elif event.receiver is not None and isinstance(event.receiver, Tensor) and event.name in _METHODS:
        wrong = any(holds_tensor(value) for value in event.args)
    elif is_call_of(event, "pad"):
        wrong = len(given) > 1 and holds_tensor(given[1])
    elif is_call_of(event, "as_strided"):
        wrong = any(
            holds_tensor(value)
            for value in [*given[1:], event.keywords.get("size"), event.keywords.get("stride")]
        )
    elif is_call_of(event, "narrow"):
        wrong = any(isinstance(value, Tensor) for value in given[2:])
    elif is_call_of(event, "interpolate", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "upsample"):
        wrong = any(holds_tensor(value) for value in [*given[1:3], event.keywords.get("size")])
    else:
        return None
    return Hit() if wrong else None


RULE = Rule(
    id="TPU107",
    name="tensor-size",
    severity=Severity.ERROR,
    summary="a tensor given as a size or range: `torch.ones(b, n)`, `torch.arange(n)`, `x.view(n, -1)`, "
    "`F.pad(x, (0, n))`",
    why="Sizes are part of the compiled program. A size held in a tensor has no value while the program is "
    "traced, so "
    "Python's request for it ends in `ConcretizationTypeError` or `TracerIntegerConversionError`.",
    reason="a size must be a number while tracing, and this one is a tensor",
    remedy="take the size from `.shape`, the configuration or an argument that is an int; or use the largest "
    "size and a mask",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, lengths: torch.Tensor):
        return torch.arange(lengths.max()) + x.sum()
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
    check=check,
)
