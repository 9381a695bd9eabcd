"""TPU210: comparisons that return Python's booleans."""

from typing import Final

from tpuport.lint.abstract_values import Layer, is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule, named

_LINE_SEARCHES: Final = frozenset(
    {"torch.optim.lbfgs._strong_wolfe", "torch.optim.lbfgs._cubic_interpolate"}
)
_REPEATED: Final = Hit(
    reason="it draws again until all numbers are within bounds, and while tracing there are none",
    remedy="draw with `torch.randn` and `clamp`, or by `torch.erfinv` of uniform numbers",
)


def check(event: Call, context: Context) -> Answer:
    """`equal`, `allclose`, `is_nonzero`, and what torch decides by values in Python."""
    match event:
        case Call(receiver=Layer(name="torch.optim.LBFGS"), name="step"):
            return True
        case Call(
            receiver=Layer(name="torch.optim.lr_scheduler.ReduceLROnPlateau"),
            name="step",
            args=[metric, *_],
        ):
            return is_traced(metric)
    if event.name in _LINE_SEARCHES:
        return any(map(is_traced, event.args))
    if event.name == "torch.nn.init.trunc_normal_":
        return _REPEATED if any(map(is_traced, event.args)) else None
    # `isclose` and `eq` return tensors.
    return is_call_of(event, "equal", "allclose", "is_nonzero")


RULE = Rule(
    id="TPU210",
    name="tensor-comparison",
    severity=Severity.ERROR,
    summary="`torch.equal`, `allclose`, `is_nonzero`, `trunc_normal_`, the line search of `torch.optim.LBFGS`",
    why="These functions return a Python bool, which depends on the tensors' values, or decide by one "
    "themselves. While the program is traced there are none.",
    reason="the result is a Python bool, which needs values that do not exist while tracing",
    remedy="compare with `(a == b).all()` or `torch.isclose(a, b).all()`, whose results are tensors, and "
    "choose with `torch.where`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        if torch.equal(x, y):
            return x
        return y
""",
        "(torch.randn(2, 4), torch.randn(2, 4))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        return torch.where((x == y).all(), x, y)
""",
        "(torch.randn(2, 4), torch.randn(2, 4))",
    ),
    events=(Call,),
    calls=named(
        "step",
        "_strong_wolfe",
        "_cubic_interpolate",
        "trunc_normal_",
        "equal",
        "allclose",
        "is_nonzero",
    ),
    check=check,
)
