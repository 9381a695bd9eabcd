"""TPU501: tables built in forward."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import is_call_of
from tpuport.lint.rules.rule import Context, Example, Hit, Rule
from tpuport.lint.values import Tensor, Unknown

_TABLES = ("arange", "linspace", "logspace", "tril_indices", "triu_indices")


def check(event: Call, context: Context) -> Hit | None:
    """A table whose arguments are all static: the same numbers at each call."""
    if event.receiver is not None or not is_call_of(event, *_TABLES):
        return None
    given = [*event.args, *event.keywords.values()]
    return None if any(isinstance(value, Tensor | Unknown) for value in event.args) or not given else Hit()


RULE = Rule(
    id="TPU501",
    name="tensor-built-in-forward",
    severity=Severity.INFO,
    summary="a table built from shapes in traced code: `torch.arange`, `torch.linspace`",
    why="A table that depends on shapes alone has the same numbers at each call, and is computed at each call"
    " all the same, with whatever follows from it: positions, angles, their sines. Without `device=` it "
    "also stays on the host while everything else is on the device, and the first operation that meets "
    "both raises.",
    reason="the table holds the same numbers at each call, and is computed at each call",
    remedy="compute it once in `__init__` for the longest length, keep it with `register_buffer(..., "
    "persistent=False)` and slice it",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        position = torch.arange(x.shape[1], device=x.device)
        return x + (position / 100.0).sin()
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", (torch.arange(64) / 100.0).sin(), persistent=False)

    def forward(self, x):
        return x + self.table[: x.shape[1]]
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x + x.new_zeros(x.shape[1])
"""),
    ),
    harm="slow",
    events=(Call,),
    check=check,
)
