"""TPU210: comparisons that return Python's booleans."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule


def check(event: Call, context: Context) -> bool:
    """`equal`, `allclose`, `is_nonzero`."""
    # `isclose` and `eq` return tensors.
    return is_call_of(event, "equal", "allclose", "is_nonzero")


RULE = Rule(
    id="TPU210",
    name="tensor-comparison",
    severity=Severity.ERROR,
    summary="`torch.equal`, `torch.allclose`, `torch.is_nonzero`",
    why="These functions return a Python bool, which depends on the tensors' values. While the program is "
    "traced there are none.",
    reason="the result is a Python bool, which needs values that do not exist while tracing",
    remedy="compare with `(a == b).all()` or `torch.isclose(a, b).all()`, whose results are tensors, and "
    "choose with `torch.where`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        if torch.equal(x, y):
            return x
        return y
""",
        "(torch.randn(2, 4), torch.randn(2, 4))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        return torch.where((x == y).all(), x, y)
""",
        "(torch.randn(2, 4), torch.randn(2, 4))",
    ),
    events=(Call,),
    check=check,
)
