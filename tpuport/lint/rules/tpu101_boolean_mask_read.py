"""TPU101: `x[mask]` read with a mask of booleans."""

import itertools

from tpuport.lint.abstract_values import Sequence, Tensor, Unknown, Value
from tpuport.lint.events import Subscript
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import is_mask
from tpuport.lint.rules.rule import Context, Example, Rule


def check(event: Subscript, context: Context) -> bool:
    """A read whose index contains a boolean tensor."""
    # A write is TPU113. A list or dictionary of Python has no masks.
    if event.store or not isinstance(event.base, Tensor | Unknown):
        return False
    # One mask is enough, whatever other indices there are.
    return any(map(is_mask, itertools.chain.from_iterable(map(_parts, event.indices))))


def _parts(index: Value) -> tuple[Value, ...]:
    """The tensors in an index: `x[[mask]]` has them in a list."""
    if isinstance(index, Sequence):
        return index.items or ()
    return (index,)


RULE = Rule(
    id="TPU101",
    name="boolean-mask-read",
    severity=Severity.ERROR,
    summary="an array read with a boolean mask: `x[mask]`, `x[~mask]`, `x[a > b]`",
    why="The number of elements that a boolean mask selects depends on the mask's values, which do not exist "
    "while the program is traced. XLA programs have fixed shapes, so tracing ends with "
    "`NonConcreteBooleanIndexError`.",
    reason="the result's length is the number of true elements, which is not known while tracing",
    remedy="keep the full length: `torch.where(mask, x, 0)` before a sum, or a stable argsort of the mask "
    "and a gather",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, mask):
        return x[mask > 0].sum()
""",
        "(torch.randn(2, 4), torch.tensor([[1, 1, 0, 0], [1, 0, 0, 1]]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask > 0, x, 0.0).sum()
""",
        "(torch.randn(2, 4), torch.tensor([[1, 1, 0, 0], [1, 0, 0, 1]]))",
    ),
    quiet=(
        # An index of integers: the result is as long as the index.
        Example(
            """
class Model(nn.Module):
    def forward(self, x, index):
        return x[:, index.long()]
""",
            "(torch.randn(2, 4), torch.tensor([3, 0, 1]))",
        ),
        # A mask as a factor keeps the shape.
        Example(
            """
class Model(nn.Module):
    def forward(self, x, mask):
        return x * mask[:, None]
""",
            "(torch.randn(2, 4), torch.tensor([1.0, 0.0]))",
        ),
    ),
    events=(Subscript,),
    check=check,
    fix=Applicability.UNSAFE,
)
