"""TPU204: Python numbers made of tensors."""

from typing import Final

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule

_CONVERSIONS: Final = frozenset(
    {"builtins.int", "builtins.float", "builtins.bool", "builtins.complex"}
)


def _is_conversion(name: str) -> bool:
    # `math.prod` only multiplies, which a row of a tensor can do too.
    return name in _CONVERSIONS or (name.startswith("math.") and name != "math.prod")


def check(event: Call, context: Context) -> bool:
    """`int(t)` and its like, and functions of `math` that get a tensor."""
    # The tensor may be any of the arguments: `math.pow(2, x)`.
    is_traced_call = event.receiver is None and any(map(is_traced, event.args))
    return is_traced_call and _is_conversion(event.name)


RULE = Rule(
    id="TPU204",
    name="python-number",
    severity=Severity.ERROR,
    summary="`int()`, `float()`, `bool()` or a function of `math` applied to a tensor",
    why="A Python number needs the tensor's value. While the program is traced there is none, and "
    "`ConcretizationTypeError` is raised. A number computed from a shape or the configuration is fine.",
    reason="a Python number needs the tensor's value, and while tracing there is none",
    remedy="stay with a 0-d tensor (`x.sqrt()` for `math.sqrt(x)`, `.to(torch.int32)` for `int()`), or pass "
    "the number in",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x / math.sqrt(x.var())
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x / x.var().sqrt()
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        # Shapes and numbers of elements are Python ints while tracing.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return x / math.sqrt(x.shape[-1]) + int(x.numel()) + float(x.size(0))
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Call,),
    calls=_is_conversion,
    check=check,
)
