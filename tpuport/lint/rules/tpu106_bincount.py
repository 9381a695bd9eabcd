"""TPU106: `bincount`, whose length depends on the values."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """`bincount`, whose `minlength` is only a lower bound; `histc` has a static number
    of bins and traces.
    """
    # Weights do not change the length.
    return is_call_of(event, "bincount")


RULE = Rule(
    id="TPU106",
    name="bincount",
    severity=Severity.ERROR,
    summary="`bincount`, with or without `minlength`",
    why="The result of `bincount` is one longer than its largest element, and `minlength` is only a lower "
    "bound. The largest element is a value that does not exist while the program is traced. `histc` has a "
    "fixed number of bins and traces.",
    reason="the length of the result depends on its largest element, which is not known while tracing",
    remedy="scatter ones into a table of fixed size: `torch.zeros(n).scatter_add(0, ids, torch.ones(...))`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, ids):
        return torch.bincount(ids, minlength=5)
""",
        "(torch.tensor([3, 1, 3, 2]),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, ids):
        return ids.new_zeros(5).scatter_add(0, ids, torch.ones_like(ids))
""",
        "(torch.tensor([3, 1, 3, 2]),)",
    ),
    quiet=(
        # The number of bins is an argument.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return torch.histc(x, bins=4, min=-1, max=1)
"""
        ),
    ),
    events=(Call,),
    calls=named("bincount"),
    check=check,
)
