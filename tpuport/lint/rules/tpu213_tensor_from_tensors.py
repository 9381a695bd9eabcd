"""TPU213: `torch.tensor` of tensors."""

from tpuport.lint.abstract_values import Sequence, Tensor
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import holds_tensor
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: Call, context: Context) -> Hit | None:
    """`torch.tensor([t, ...])`; or of a tensor itself."""
    if event.name not in {
        "torch.tensor",
        "torch.as_tensor",
        "torch.asarray",
        "torch.full",
        "torch.scalar_tensor",
    }:
        return None
    if event.name == "torch.full":
        return Hit() if len(event.args) > 1 and isinstance(event.args[1], Tensor) else None
    first = event.args[0] if event.args else event.keywords.get("data")
    if event.name == "torch.tensor" and isinstance(first, Tensor):
        return Hit(
            reason="`torch.tensor` of a tensor gives one without values while tracing",
            remedy="write `x.clone()` or `x.detach()`",
        )
    return Hit() if isinstance(first, Sequence) and holds_tensor(first) else None


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
