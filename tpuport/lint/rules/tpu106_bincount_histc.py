"""TPU106: `bincount` and histograms whose size or range comes out of the values."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import is_call_of
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: Call, context: Context) -> Hit | None:
    """`bincount` always; a histogram is a matter of values only by its range."""
    if is_call_of(event, "bincount", "histogram", "histogramdd"):
        return Hit()
    if is_call_of(event, "histc") and not event.keywords.keys() & {"min", "max"} and len(event.args) < 4:
        return Hit()
    return None


RULE = Rule(
    id="TPU106",
    name="bincount-histc",
    severity=Severity.ERROR,
    summary="`bincount`, and `histc` or `histogram` whose range comes out of the values",
    why="`bincount` is as long as its largest element, and `minlength` is only a lower bound. A histogram "
    "without a "
    "range looks for the smallest and largest value first. Both are values that do not exist while the "
    "program is traced.",
    reason="the result's length or range comes out of values that are not known while tracing",
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
        return torch.zeros(5, dtype=torch.int64).scatter_add(0, ids, torch.ones_like(ids))
""",
        "(torch.tensor([3, 1, 3, 2]),)",
    ),
    events=(Call,),
    check=check,
)
