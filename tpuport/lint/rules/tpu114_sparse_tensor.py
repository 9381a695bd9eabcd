"""TPU114: sparse tensors."""

from tpuport.lint.abstract_values import Sequence, Tensor
from tpuport.lint.events import Arithmetic, Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import has_tensor, operands
from tpuport.lint.rules.rule import Context, Example, Rule

_BUFFER = "sparse buffer"


def check(event: Arithmetic | Call, context: Context) -> bool:
    """A tensor of the device that becomes sparse, and whatever computes a tensor with a
    sparse buffer.
    """
    if isinstance(event, Arithmetic):
        sides = (event.left, event.right)
        return any(side is not None and side.origin == _BUFFER for side in sides)
    if not isinstance(event.result, Tensor | Sequence):
        return False
    values = [event.receiver, *event.args, *event.keywords.values()]
    if any(value is not None and value.origin == _BUFFER for value in values):
        return True
    return event.result.origin == "sparse" and any(map(has_tensor, operands(event)))


RULE = Rule(
    id="TPU114",
    name="sparse-tensor",
    severity=Severity.ERROR,
    summary="sparse tensors in traced code: `x.to_sparse()`, and operations that read a sparse buffer",
    why="A sparse tensor is not an array, and torchax has no operators of sparse ones. `tpuport.port` leaves a sparse "
    "buffer on the host, where it harms nobody until `forward` reads it.",
    reason="a sparse tensor does not become an array, and stays on the host",
    remedy="a dense matrix, `adjacency.to_dense()` in `__init__`; if it is too large for that, indices and values in "
    "buffers of their own, and `index_add` of the values times the rows",
    bad=Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("adjacency", torch.eye(3).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.adjacency, x)
""",
        "(torch.randn(3, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        adjacency = torch.eye(3).to_sparse()
        self.register_buffer("rows", adjacency.indices()[0])
        self.register_buffer("columns", adjacency.indices()[1])
        self.register_buffer("values", adjacency.values())

    def forward(self, x):
        parts = self.values[:, None] * x[self.columns]
        return torch.zeros_like(x).index_add(0, self.rows, parts)
""",
        "(torch.randn(3, 4),)",
    ),
    quiet=(
        # It stays in `__init__`, and nothing but its size is asked for.
        Example(
            """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        adjacency = torch.eye(3).to_sparse()
        self.register_buffer("dense", adjacency.to_dense())
        self.register_buffer("adjacency", adjacency)

    def forward(self, x):
        return self.dense @ x / self.adjacency.size(0)
""",
            "(torch.randn(3, 4),)",
        ),
    ),
    events=(Arithmetic, Call),
    check=check,
)
