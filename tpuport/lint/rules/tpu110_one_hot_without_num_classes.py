"""TPU110: `one_hot` without the number of classes."""

from tpuport.lint.abstract_values import Static, is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import argument, is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """No `num_classes`, the -1 that means none, or a tensor."""
    if not is_call_of(event, "one_hot"):
        return False
    classes = argument(event, 1, "num_classes")
    # -1, the default, means one more than the largest element.
    if isinstance(classes, Static):
        return classes.constant == -1
    return classes is None or is_traced(classes)


RULE = Rule(
    id="TPU110",
    name="one-hot-without-num-classes",
    severity=Severity.ERROR,
    summary="`F.one_hot` without `num_classes`",
    why="Without `num_classes` the width of the result is the largest element plus one, a value that does "
    "not exist while the program is traced.",
    reason="without num_classes the result is as wide as the largest element, which is not known while "
    "tracing",
    remedy="pass `num_classes=`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, ids):
        return F.one_hot(ids).float()
""",
        "(torch.tensor([3, 1, 3, 2]),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, ids):
        return F.one_hot(ids, num_classes=4).float()
""",
        "(torch.tensor([3, 1, 3, 2]),)",
    ),
    events=(Call,),
    calls=named("one_hot"),
    check=check,
)
