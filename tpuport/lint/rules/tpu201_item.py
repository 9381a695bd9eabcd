"""TPU201: `.item()`."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """The method of a tensor or an unknown object: nothing else in traced code has
    it.
    """
    # A function of torch called `item` does not exist; one of another library may.
    return event.receiver is not None and is_call_of(event, "item")


RULE = Rule(
    id="TPU201",
    name="item",
    severity=Severity.ERROR,
    summary="`.item()` in traced code",
    why="`.item()` asks for a tensor's value as a Python number. While the program is traced there is no "
    "value, and torchax raises `ConcretizationTypeError`. It also makes an eager program wait for the "
    "device.",
    reason="`.item()` asks for a value, and while tracing there is none",
    remedy="keep the number in a tensor (a 0-d tensor broadcasts like a number), or compute it before the "
    "call and pass it in",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().max().item()
        return x / scale
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().max()
        return x / scale
""",
        "(torch.randn(2, 4),)",
    ),
    events=(Call,),
    calls=named("item"),
    check=check,
)
