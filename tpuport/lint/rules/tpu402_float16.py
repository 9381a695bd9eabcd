"""TPU402: float16."""

from tpuport.lint.abstract_values import is_tensor
from tpuport.lint.events import Call, Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import dtype_hits
from tpuport.lint.rules.rule import Answer, Context, Example, Rule


def check(event: Call | Use, context: Context) -> Answer:
    """A cast to float16, or a tensor created in it, in traced code; `.half()` in a
    module's `__init__`.
    """
    # `self.half()` in `__init__` makes all weights float16.
    if isinstance(event, Use):
        return event.name == ".half" and event.call is not None and event.in_init
    if event.name == "half":
        return is_tensor(event.receiver)
    return dtype_hits(event, "float16")


RULE = Rule(
    id="TPU402",
    name="float16",
    severity=Severity.WARNING,
    summary="float16 instead of bfloat16: `.half()`, `dtype=torch.float16`",
    why="The matrix units of a TPU take bfloat16, not float16: XLA widens float16 for each product, so it "
    "saves nothing, and its range ends at 65504, while that of bfloat16 is as wide as float32's. Models "
    "written for GPUs often use float16 out of habit, with loss scaling and clamps around it.",
    reason="TPUs compute in bfloat16; float16 is emulated and overflows at 65504",
    remedy="use `torch.bfloat16`, or the dtype of an existing tensor: `x.to(self.weight.dtype)`",
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
        # A comparison, and limits of the dtype, compute nothing in float16.
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
