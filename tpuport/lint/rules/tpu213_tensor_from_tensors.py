"""TPU213: `torch.tensor` of tensors."""

from typing import Final

from tpuport.lint.abstract_values import Sequence, is_traced
from tpuport.lint.dtype_families import TENSOR_CLASSES
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule

_FROM_DATA: Final = frozenset(
    {"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.scalar_tensor"}
    # With numbers instead of a list, these classes give a tensor of that size.
    | {f"torch.{name}" for name in TENSOR_CLASSES}
)

# Their first argument is a size, which is TPU107, or a tensor; the second fills it.
_FILLED: Final = frozenset({"torch.full", "torch.full_like"})


def check(event: Call, context: Context) -> bool:
    """`torch.tensor([t, ...])`, a list that is converted element by element; a tensor
    as the value of `torch.full`.
    """
    if event.name in _FILLED or (
        event.name == "new_full" and event.receiver is not None
    ):
        # With a device, `torch.full` broadcasts a tensor; the others ask for a number
        # anyway.
        is_broadcast = event.name == "torch.full" and "device" in event.keywords
        value = (
            event.args[1] if len(event.args) > 1 else event.keywords.get("fill_value")
        )
        return is_traced(value) and not is_broadcast
    data = event.args[0] if event.args else event.keywords.get("data")
    return event.name in _FROM_DATA and isinstance(data, Sequence) and data.tensors


RULE = Rule(
    id="TPU213",
    name="tensor-from-tensors",
    severity=Severity.ERROR,
    summary="`torch.tensor([...])` of a list that contains tensors, `torch.full_like` with a tensor",
    why="`torch.tensor` builds a constant from Python numbers, so it asks each tensor in the list for its "
    "value, and while the program is traced there is none.",
    reason="a constant is built from numbers, and these tensors have no value while tracing",
    remedy="use `torch.stack([...])` for a list of tensors, `value.expand(size)` to fill with a tensor",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.tensor([x.min(), x.max()])
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.stack([x.min(), x.max()])
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        # Numbers from a shape make a constant.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return torch.tensor([x.shape[0], 2.0], device=x.device) * x.sum()
""",
            "(torch.randn(2, 4),)",
        ),
        # Of a tensor itself it makes a copy, as `clone` does.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return torch.tensor(x.mean(), dtype=torch.float32) + torch.tensor(x)
"""),
        # With a device, the value is broadcast.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return torch.full((2, 3), x.mean(), device=x.device)
"""),
    ),
    events=(Call,),
    calls=lambda name: name in {*_FILLED, *_FROM_DATA, "new_full"},
    check=check,
)
