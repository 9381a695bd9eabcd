"""TPU109: `split` with sizes that are tensors."""

from typing import Final

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import argument, has_tensor, is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule, named

_SPLITS: Final = frozenset(
    {"split", "split_with_sizes", "tensor_split", "chunk", "unsafe_split"}
)


def check(event: Call, context: Context) -> bool:
    """Sizes or positions of a split, in a tensor or a list of tensors."""
    if not is_call_of(event, *_SPLITS):
        return False
    # Each function has its own name for the second argument.
    sizes = argument(
        event,
        1,
        "split_size_or_sections",
        "split_size",
        "indices_or_sections",
        "split_sizes",
    )
    return has_tensor(sizes)


RULE = Rule(
    id="TPU109",
    name="tensor-split-sizes",
    severity=Severity.ERROR,
    summary="`split` or `tensor_split` with sizes that are tensors",
    why="The lengths of the parts are shapes of the compiled program. Held in a tensor, they have no value "
    "while the program is traced.",
    reason="the lengths of the parts must be numbers while tracing, and these are tensors",
    remedy="keep one padded array with a mask or segment ids that say which part each element belongs to; or "
    "pass a list of ints",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, sizes: torch.Tensor):
        return torch.tensor_split(x, sizes, dim=1)[0]
""",
        "(torch.randn(2, 4), torch.tensor([1, 3]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    sizes = [1, 2, 1]

    def forward(self, x, sizes: torch.Tensor):
        return torch.split(x, self.sizes, dim=1)[0]
""",
        "(torch.randn(2, 4), torch.tensor([1, 3]))",
    ),
    quiet=(
        # A part of `.shape` is a Python int.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        first, second = x.split(x.shape[1] // 2, dim=1)
        return first * second
"""
        ),
    ),
    events=(Call,),
    calls=named(*_SPLITS),
    check=check,
)
