"""TPU208: `range` of a tensor."""

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """`range(n)` with a tensor among its arguments."""
    # Start, stop and step alike.
    return event.name == "builtins.range" and any(map(is_traced, event.args))


RULE = Rule(
    id="TPU208",
    name="tensor-range",
    severity=Severity.ERROR,
    summary="`range` of a tensor",
    why="The number of iterations of a Python loop is fixed while the program is traced, and a number held "
    "in a tensor has no value then: `TracerIntegerConversionError`.",
    reason="the number of iterations is not known while tracing",
    remedy="loop over a fixed number of steps and mask, use `torch.arange` arithmetic instead of a loop, or "
    "pass the number as an int",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, steps: torch.Tensor):
        for _ in range(steps):
            x = x * 2
        return x
""",
        "(torch.randn(2, 4), torch.tensor(3))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, steps: torch.Tensor):
        return x * 2.0**steps
""",
        "(torch.randn(2, 4), torch.tensor(3))",
    ),
    quiet=(
        # A size is a Python int.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        for i in range(x.shape[1]):
            x = x + i
        return x
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Call,),
    calls=named("range"),
    check=check,
)
