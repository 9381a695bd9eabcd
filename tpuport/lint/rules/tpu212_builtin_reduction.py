"""TPU212: Python's own reductions over tensors."""

from typing import Final

from tpuport.lint.abstract_values import Sequence, is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import has_tensor
from tpuport.lint.rules.rule import Context, Example, Rule, named

_COMPARING: Final = frozenset(
    {"builtins.max", "builtins.min", "builtins.sorted", "builtins.any", "builtins.all"}
)


def check(event: Call, context: Context) -> bool:
    """`max`, `min`, `sorted`, `any`, `all`, `list.sort` that compare tensors or ask
    them for their truth.
    """
    # What is compared by a key is not the tensor.
    if "key" in event.keywords:
        return False
    match event:
        case Call(name="sort", receiver=Sequence() as values):
            pass
        case Call(name=name, args=[values]) if name in _COMPARING:
            pass
        # `max(a, b)` compares its arguments, `max(values)` the elements of its only
        # one.
        case Call(name=name, args=[_, _, *_]) if name in _COMPARING:
            return any(map(is_traced, event.args))
        case _:
            return False
    # One element needs no comparison.
    has_one = values.items is not None and len(values.items) < 2
    return has_tensor(values) and not has_one


RULE = Rule(
    id="TPU212",
    name="builtin-reduction",
    severity=Severity.ERROR,
    summary="Python's `max`, `min`, `sorted`, `any` or `all` on tensors",
    why="Python's built-in functions compare elements one by one and need the truth of each comparison, "
    "which does not exist while the program is traced.",
    reason="Python compares the elements one by one, which needs values that do not exist while tracing",
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
        # Sizes are Python ints.
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
    calls=named("sort", "max", "min", "sorted", "any", "all"),
    check=check,
)
