"""TPU214: a list indexed by a tensor."""

import ast

from tpuport.lint.abstract_values import Sequence, Static, Tensor
from tpuport.lint.events import Arithmetic, Call, Subscript
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: Arithmetic | Call | Subscript, context: Context) -> Hit | None:
    """`items[t]` of a list, a tuple or an `nn.ModuleList`; `[x] * t`; `operator.index(t)`."""
    if isinstance(event, Arithmetic):
        listed = isinstance(event.left, Sequence) and isinstance(event.operator, ast.Mult)
        repeated = listed and isinstance(event.right, Tensor)
        return Hit(reason="how long the list becomes is not known while tracing") if repeated else None
    if isinstance(event, Call):
        return (
            Hit()
            if event.name == "operator.index" and any(isinstance(v, Tensor) for v in event.args)
            else None
        )
    held = isinstance(event.base, Sequence) or (
        isinstance(event.base, Static) and event.base.kind in {"shape", "str"}
    )
    return Hit() if held and len(event.indices) == 1 and isinstance(event.indices[0], Tensor) else None


RULE = Rule(
    id="TPU214",
    name="tensor-as-index",
    severity=Severity.ERROR,
    summary="a list, tuple or `nn.ModuleList` indexed by a tensor, or a list repeated a tensor's number of "
    "times",
    why="Which element of a Python list is meant must be known while the program is traced, and a number "
    "held in a tensor has no value then: `TracerIntegerConversionError`.",
    reason="Python must know which element is meant, and while tracing the tensor has no value",
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
    check=check,
)
