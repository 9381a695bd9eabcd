"""TPU104: `unique` and `unique_consecutive`."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """The different elements of a tensor."""
    # `return_inverse` and `return_counts` do not change the length of the first result.
    return is_call_of(event, "unique", "unique_consecutive")


RULE = Rule(
    id="TPU104",
    name="unique",
    severity=Severity.ERROR,
    summary="`unique` and `unique_consecutive`, whose length is the number of distinct elements",
    why="The number of distinct elements of a tensor depends on its values, which do not exist while the "
    "program is traced. If the elements come from a known range, use a table of that size; if only their "
    "number matters, sort and count the changes.",
    reason="the number of distinct elements is not known while tracing",
    remedy="sort and compare neighbours, or scatter into a table of the range's size; or compute it before "
    "the call",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, ids):
        return torch.unique(ids).numel() * torch.ones(2, device=ids.device)
""",
        "(torch.tensor([3, 1, 3, 2]),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, ids):
        ordered = ids.sort().values
        return (1 + (ordered[1:] != ordered[:-1]).sum()) * torch.ones(2, device=ids.device)
""",
        "(torch.tensor([3, 1, 3, 2]),)",
    ),
    events=(Call,),
    calls=named("unique", "unique_consecutive"),
    check=check,
)
