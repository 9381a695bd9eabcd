"""TPU214: a list indexed by a tensor."""

import ast

from tpuport.lint.abstract_values import Sequence, Static, Tensor, is_traced
from tpuport.lint.events import (
    Arithmetic,
    Call,
    Subscript,
)
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule, named


def check(event: Arithmetic | Call | Subscript, context: Context) -> Answer:
    """`items[t]` of a list, a tuple or an `nn.ModuleList`; `[x] * t`;
    `operator.index(t)`.
    """
    match event:
        # Python asks for `__index__` in all three cases.
        case Arithmetic(left=Sequence(), operator=ast.Mult(), right=Tensor(host=False)):
            return Hit(reason="the length of the list is not known while tracing")
        case Call(name="operator.index"):
            return any(map(is_traced, event.args))
        case Subscript(
            base=Sequence() | Static(kind="shape" | "str"), indices=[Tensor(host=False)]
        ):
            return True
    return False


RULE = Rule(
    id="TPU214",
    name="tensor-as-index",
    severity=Severity.ERROR,
    summary="a list, tuple or `nn.ModuleList` indexed by a tensor, or a list multiplied by a tensor",
    why="Python must know which element of a list to take while the program is traced, and a number held in "
    "a tensor has no value then: `TracerIntegerConversionError`.",
    reason="Python must know which element to take, and while tracing the tensor has no value",
    remedy="stack the elements into one tensor and index that, or compute all and choose with `torch.where`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, choice: torch.Tensor):
        return [x, x * 2, x * 3][choice]
""",
        "(torch.randn(2, 4), torch.tensor(1))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, choice: torch.Tensor):
        return torch.stack([x, x * 2, x * 3])[choice]
""",
        "(torch.randn(2, 4), torch.tensor(1))",
    ),
    quiet=(
        # The index is computed from a shape.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return [x, x * 2][x.shape[0] - 1]
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Arithmetic, Call, Subscript),
    calls=named("index"),
    check=check,
)
