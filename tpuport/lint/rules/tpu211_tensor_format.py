"""TPU211: tensors made into text."""

from typing import Final

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import Call, Formatting
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_TO_TEXT: Final = frozenset(
    {"builtins.print", "builtins.str", "builtins.repr", "builtins.format"}
)


def check(event: Call | Formatting, context: Context) -> Answer:
    """Printed, formatted or logged tensors. Only a format that needs a number stops the
    trace.
    """
    # `{x}` shows the tracer; only `{x:.2f}` asks for a number.
    if isinstance(event, Formatting):
        return Hit(stops=event.has_spec)
    # These show the tracer too.
    is_printed = event.name in _TO_TEXT and any(map(is_traced, event.args))
    return is_printed and Hit(stops=False)


RULE = Rule(
    id="TPU211",
    name="tensor-format",
    severity=Severity.ERROR,
    summary="a tensor printed or formatted in traced code",
    why="The text is built once, while the program is traced and the tensor has no value: at best it shows "
    "the tracer, and a format such as `{x:.2f}` raises. It never shows what later runs compute.",
    reason="the text is built once while tracing, when there is no value to show",
    remedy="print after the call, or use `jax.debug.print` for intermediate values",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        title = f"mean {x.mean():.2f}"
        return x * len(title[:4])
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        title = f"rows {x.shape[0]}"
        return x * len(title[:4])
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        # The message is built only if the shape is wrong, and then tracing ends anyway.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        if x.shape[0] > 9:
            raise ValueError(f"too many rows: {x}")
        return x * 1
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(
        Call,
        Formatting,
    ),
    calls=_TO_TEXT.__contains__,
    check=check,
    fix=Applicability.UNSAFE,
)
