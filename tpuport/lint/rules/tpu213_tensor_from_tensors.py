"""TPU213: `torch.tensor` of tensors."""

from typing import Final

from tpuport.lint.abstract_values import Sequence, is_tensor
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_FROM_DATA: Final = frozenset({"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.scalar_tensor"})


def check(event: Call, context: Context) -> Answer:
    """`torch.tensor([t, ...])`; or of a tensor itself."""
    if event.name == "torch.full":
        return any(map(is_tensor, event.args[1:2]))
    if event.name not in _FROM_DATA:
        return False
    data = event.args[0] if event.args else event.keywords.get("data")
    if isinstance(data, Sequence):
        return data.tensors
    if event.name != "torch.tensor" or not is_tensor(data):
        return False
    return Hit(
        reason="`torch.tensor` of a tensor gives one without values while tracing",
        remedy="write `x.clone()` or `x.detach()`",
    )


RULE = Rule(
    id="TPU213",
    name="tensor-from-tensors",
    severity=Severity.ERROR,
    summary="`torch.tensor([...])` of a list with tensors in it, `torch.full` with a tensor",
    why="`torch.tensor` builds a constant out of Python numbers, so each tensor in the list is asked for "
    "its value. While the program is traced there is none.",
    reason="a constant is built out of numbers, and these tensors have no value while tracing",
    remedy="`torch.stack([...])` for a list of tensors, `value.expand(size)` for `torch.full`",
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
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return torch.tensor([x.shape[0], 2.0], device=x.device) * x.sum()
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Call,),
    check=check,
)
