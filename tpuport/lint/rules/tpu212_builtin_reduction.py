"""TPU212: Python's own reductions over tensors."""

from tpuport.lint.abstract_values import Sequence, Tensor
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import holds_tensor
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_COMPARING = frozenset({"builtins.max", "builtins.min", "builtins.sorted", "builtins.any", "builtins.all"})


def check(event: Call, context: Context) -> Hit | None:
    """`max`, `min`, `sorted`, `any`, `all` that compare tensors or ask them for their truth."""
    if event.name not in _COMPARING or not event.args:
        return None
    first = event.args[0]
    if len(event.args) > 1 and event.name != "builtins.sorted":
        compared = any(isinstance(value, Tensor) for value in event.args)
    else:
        compared = isinstance(first, Tensor) or (isinstance(first, Sequence) and holds_tensor(first))
        # One element needs no comparison.
        compared = compared and not (
            isinstance(first, Sequence) and first.items is not None and len(first.items) < 2
        )
    keyed = "key" in event.keywords
    return Hit() if compared and not keyed else None


RULE = Rule(
    id="TPU212",
    name="builtin-reduction",
    severity=Severity.ERROR,
    summary="`max`, `min`, `sorted`, `any` or `all` of Python over tensors",
    why="Python's own functions compare elements one by one and ask each comparison for its truth, which "
    "needs values that do not exist while the program is traced.",
    reason="Python compares the elements one by one, which needs values that are not there while tracing",
    remedy="use the tensor's method: `x.max()`, `torch.maximum(a, b)`, `x.any()`, `x.sort()`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        return x * max(x.sum(), y.sum())
""",
        "(torch.randn(2, 4), torch.randn(2, 4))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        return x * torch.maximum(x.sum(), y.sum())
""",
        "(torch.randn(2, 4), torch.randn(2, 4))",
    ),
    quiet=(
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return x * max(x.shape) * any(size == 2 for size in x.shape)
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Call,),
    check=check,
)
