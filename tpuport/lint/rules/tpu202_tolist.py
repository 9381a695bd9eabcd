"""TPU202: `.tolist()`."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """The method of a tensor or an unknown object."""
    # As for `.item()`: a function called `tolist` is not torch's.
    return event.receiver is not None and is_call_of(event, "tolist")


RULE = Rule(
    id="TPU202",
    name="tolist",
    severity=Severity.ERROR,
    summary="`.tolist()` in traced code",
    why="`.tolist()` asks for a tensor's values as Python numbers, and while the program is traced there are "
    "none. The remedy depends on what the list is for: let the caller pass sizes, and keep sums and choices "
    "in tensors.",
    reason="`.tolist()` asks for values, and while tracing there are none",
    remedy="pass the list in as Python ints, or stay with tensors",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, sizes):
        return x[:, sum(sizes.tolist()) - 1]
""",
        "(torch.randn(2, 4), torch.tensor([1, 2]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, sizes):
        return x[:, sizes.sum() - 1]
""",
        "(torch.randn(2, 4), torch.tensor([1, 2]))",
    ),
    events=(Call,),
    calls=named("tolist"),
    check=check,
)
