"""TPU108: a slice bound that is a tensor."""

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import SliceBound
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule


def check(event: SliceBound, context: Context) -> bool:
    """`x[: n]` with a tensor n, whatever is sliced."""
    # Python asks a bound for `__index__`, also if a list is sliced.
    return is_traced(event.value)


RULE = Rule(
    id="TPU108",
    name="tensor-slice-bound",
    severity=Severity.ERROR,
    summary="a slice bound that is a tensor: `x[:, : lengths[0]]`",
    why="A slice's length is part of the compiled program's shapes. A bound held in a tensor has no value "
    "while the program is traced.",
    reason="a slice's bounds must be numbers while tracing, and this one is a tensor",
    remedy="keep the full length and mask what lies beyond the bound, or pass the bound as a Python int. "
    "A write, `k[:, :, pos : pos + n] = new`, becomes `k.index_copy_(2, pos + torch.arange(n), new)`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, lengths: torch.Tensor):
        return x[:, : lengths[0]].sum()
""",
        "(torch.randn(2, 4), torch.tensor([3, 2]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, lengths: torch.Tensor):
        inside = torch.arange(x.shape[1], device=x.device) < lengths[0]
        return torch.where(inside, x, 0.0).sum()
""",
        "(torch.randn(2, 4), torch.tensor([3, 2]))",
    ),
    quiet=(
        # Bounds computed from `.shape` are Python ints while tracing.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        half = x.shape[-1] // 2
        return torch.cat([-x[..., half:], x[..., :half]], dim=-1)
"""
        ),
    ),
    events=(SliceBound,),
    check=check,
)
