"""TPU207: Python loops over the rows of a tensor."""

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import Iteration
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule


def check(event: Iteration, context: Context) -> bool:
    """A loop or comprehension over a tensor; whoever unpacks two or three rows means
    to.
    """
    # Whether the body is long or the tensor has many rows is not known here: hence a
    # warning.
    return is_traced(event.value)


RULE = Rule(
    id="TPU207",
    name="tensor-iteration",
    severity=Severity.WARNING,
    summary="a Python loop over a tensor: `for row in x`",
    why="The number of rows is a shape, so the loop traces, but it is unrolled: the program contains the "
    "body once per row, takes proportionally longer to compile, and is compiled again for every other number "
    "of rows. If the body needs a row's value as a Python number, it does not trace at all.",
    reason="the loop is unrolled: the program grows with the number of rows and is compiled again for every "
    "other number",
    remedy="work on the whole tensor at once, or use `torch.vmap`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        total = 0
        for row in x:
            total = total + row.softmax(-1).square().sum()
        return total
""",
        "(torch.randn(64, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x.softmax(-1).square().sum()
""",
        "(torch.randn(64, 4),)",
    ),
    quiet=(
        # Unpacking two parts is as short in the program as in the text.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        first, second = x.chunk(2)
        return first * second
"""
        ),
    ),
    harm="unrolled",
    events=(Iteration,),
    check=check,
)
