"""TPU102: `nonzero`, `argwhere` and `where` of one argument."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """Functions that return the positions of true elements."""
    if is_call_of(event, "nonzero", "argwhere"):
        return True
    # The method `x.where(condition, other)` always chooses.
    is_function = is_call_of(event, "where") and event.receiver is None
    return is_function and len(event.args) + len(event.keywords) == 1


RULE = Rule(
    id="TPU102",
    name="nonzero",
    severity=Severity.ERROR,
    summary="the positions of true elements: `nonzero`, `argwhere`, `torch.where(condition)`",
    why="The length of the result is the number of nonzero elements, which depends on values that do not "
    "exist while the program is traced: tracing ends with `ConcretizationTypeError`. Positions are seldom "
    "needed as an index: `torch.where` with three arguments, or arithmetic with the mask itself, gives the "
    "same result.",
    reason="the number of nonzero elements is not known while tracing",
    remedy="use the mask itself: `torch.where(mask, a, b)`, or `argmax`/`argsort` of the mask for positions",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        places = torch.nonzero(x > 0)
        return places.float().mean()
"""
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        mask = x > 0
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        columns = torch.arange(x.shape[1], device=x.device)[None, :]
        return (torch.where(mask, rows + columns, 0).sum() / (2 * mask.sum())).float()
"""
    ),
    quiet=(
        # With three arguments the result has the shape of the condition.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, 0.0)
"""
        ),
        # A count is one number, whatever the values.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return torch.count_nonzero(x > 0)
"""
        ),
    ),
    events=(Call,),
    calls=named("nonzero", "argwhere", "where"),
    check=check,
    fix=Applicability.SAFE,
)
