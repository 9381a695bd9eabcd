"""TPU206: assertions about values."""

from typing import Final

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import Call, Truth
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_CHECKS: Final = frozenset({"torch._assert", "torch._check"})


def check(event: Call | Truth, context: Context) -> Answer:
    """`assert` of a tensor, and torch's own checks of one."""
    if isinstance(event, Truth):
        is_assertion = event.construct == "assert" and is_traced(event.value)
        return is_assertion and Hit(node=event.statement)
    # Of the arguments only the first is the condition. The fix only removes `assert`
    # statements.
    is_check = event.name in _CHECKS and any(map(is_traced, event.args[:1]))
    return is_check and Hit(fix=Applicability.NONE)


RULE = Rule(
    id="TPU206",
    name="tensor-assert",
    severity=Severity.ERROR,
    summary="`assert` of a tensor's value",
    why="An assertion needs the value, and while the program is traced there is none: "
    "`TracerBoolConversionError`. Assertions about shapes are checked while tracing and are fine.",
    reason="the assertion needs a tensor's value, and while tracing there is none",
    remedy="check the input on the host before the call; assertions about shapes may stay",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        assert x.max() <= 100
        return x * 2
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        assert x.shape[0] == 2
        return x * 2
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        # Shapes are known while tracing, also in the message.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        assert x.ndim == 2 and x.size(1) % 2 == 0, f"odd width {x.shape}"
        return x * 2
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(
        Call,
        Truth,
    ),
    calls=_CHECKS.__contains__,
    check=check,
    fix=Applicability.UNSAFE,
)
