"""TPU205: Python branches on tensors."""

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import Truth
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule


def check(event: Truth, context: Context) -> Answer:
    """Every question for a tensor's truth except an assertion's, which is TPU206."""
    if event.construct == "assert" or not is_traced(event.value):
        return False
    # The sentence names the construct: `and` and `not` are easily missed on a line with
    # an `if`.
    return Hit(
        reason=f"`{event.construct}` asks for the value of a tensor, and while tracing there is none"
    )


RULE = Rule(
    id="TPU205",
    name="tensor-condition",
    severity=Severity.ERROR,
    summary="a tensor in `if`, `while`, `and`, `or`, `not`, a conditional expression or a comprehension's "
    "condition",
    why="Python must know which branch to take, and that depends on a value that does not exist while the "
    "program is traced: `TracerBoolConversionError`. A condition on shapes, on the configuration or on `is "
    "None` is decided while tracing and is fine.",
    reason="the branch depends on a tensor's value, and while tracing there is none",
    remedy="compute both and choose with `torch.where`, or decide before the call and pass a Python bool",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.where(x.sum() > 0, x * 2, x)
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        # A shape, `is None` and a flag of the module are known while tracing.
        Example(
            """
class Model(nn.Module):
    def forward(self, x, mask=None):
        if x.shape[0] > 1 and mask is None and not self.training:
            return x * 2
        return x
""",
            "(torch.randn(2, 4),)",
        ),
        # So are a tensor's class, dtype and rank.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        if isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.dim() == 2:
            return x * 2
        return x
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Truth,),
    check=check,
)
