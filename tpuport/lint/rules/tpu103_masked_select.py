"""TPU103: `masked_select`."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """`torch.masked_select(x, mask)` and `x.masked_select(mask)`."""
    return is_call_of(event, "masked_select")


_INPUTS = "(torch.randn(2, 4), torch.tensor([[True, False, True, True], [False, True, True, False]]))"

RULE = Rule(
    id="TPU103",
    name="masked-select",
    severity=Severity.ERROR,
    summary="`masked_select`, whose length is the number of true elements",
    why="`masked_select` is `x[mask]` under another name: the length of its result depends on the mask's "
    "values, which do not exist while the program is traced.",
    reason="the result's length is the number of true elements, which is not known while tracing",
    remedy="keep the full length and neutralise the rest: `torch.where(mask, x, 0)`, dividing by "
    "`mask.sum()` for a mean",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, mask):
        return torch.masked_select(x, mask).mean()
""",
        _INPUTS,
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask, x, 0.0).sum() / mask.sum()
""",
        _INPUTS,
    ),
    quiet=(
        # `masked_fill` keeps the shape.
        Example(
            """
class Model(nn.Module):
    def forward(self, x, mask):
        return x.masked_fill(mask, 0.0)
""",
            _INPUTS,
        ),
    ),
    events=(Call,),
    calls=named("masked_select"),
    check=check,
)
