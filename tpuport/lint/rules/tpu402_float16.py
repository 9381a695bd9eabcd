"""TPU402: float16."""

from tpuport.lint.abstract_values import is_tensor
from tpuport.lint.events import Call, Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import dtype_hits
from tpuport.lint.rules.rule import Answer, Context, Example, Rule


def check(event: Call | Use, context: Context) -> Answer:
    """A cast to float16, or a tensor created in it, in traced code; `.half()` in a module's `__init__`."""
    if isinstance(event, Use):
        return event.name == ".half" and event.call is not None and event.in_init
    if event.name == "half":
        return is_tensor(event.receiver)
    return dtype_hits(event, "float16")


RULE = Rule(
    id="TPU402",
    name="float16",
    severity=Severity.WARNING,
    summary="float16 where bfloat16 is meant: `.half()`, `dtype=torch.float16`",
    why="The matrix units of a TPU take bfloat16. float16 is not one of their types: XLA widens it for each "
    "product, so it saves nothing, and its range ends at 65504, where bfloat16 reaches as far as float32."
    " Models written for GPUs say float16 out of habit, with loss scaling and clamps around it.",
    reason="TPUs compute in bfloat16; float16 is emulated and overflows at 65504",
    remedy="say `torch.bfloat16`, or the dtype of a tensor at hand: `x.to(self.weight.dtype)`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        x = x.to(torch.float16)
        return (x * x).sum(-1)
""",
        "(torch.full((2, 4), 300.0),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        x = x.to(torch.bfloat16)
        return (x * x).sum(-1)
""",
        "(torch.full((2, 4), 300.0),)",
    ),
    quiet=(
        Example("""
class Model(nn.Module):
    def forward(self, x):
        if x.dtype == torch.float16:
            x = x.clamp(min=torch.finfo(torch.float16).min)
        return x * 2
"""),
    ),
    harm="nan",
    events=(
        Call,
        Use,
    ),
    check=check,
    fix=Applicability.UNSAFE,
)
