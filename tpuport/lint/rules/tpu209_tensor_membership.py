"""TPU209: `in` with tensors."""

from tpuport.lint.abstract_values import Mapping, Sequence, Tensor
from tpuport.lint.events import Membership
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import holds_tensor
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: Membership, context: Context) -> Hit | None:
    """A tensor looked for in a list, or anything looked for in a tensor or a list of tensors."""
    if isinstance(event.container, Mapping) or (
        isinstance(event.container, Sequence) and event.container.kind in {"set", "dict_views"}
    ):
        # These look for a hash, and a tensor's is its identity.
        return None
    if isinstance(event.container, Tensor):
        return Hit()
    if isinstance(event.container, Sequence) and (
        isinstance(event.item, Tensor) or holds_tensor(event.container)
    ):
        return Hit()
    return None


RULE = Rule(
    id="TPU209",
    name="tensor-membership",
    severity=Severity.ERROR,
    summary="`in` on a tensor, or a tensor looked for in a list",
    why="`in` compares and asks each comparison for its truth, which needs values that do not exist while "
    "the program is traced.",
    reason="`in` compares values, and while tracing there are none",
    remedy="`(x == value).any()` as a tensor, or `torch.isin`, and `torch.where` in the place of the branch",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, ids: torch.Tensor):
        return x * 2 if 3 in ids else x
""",
        "(torch.randn(2, 4), torch.tensor([3, 1]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, ids: torch.Tensor):
        return torch.where((ids == 3).any(), x * 2, x)
""",
        "(torch.randn(2, 4), torch.tensor([3, 1]))",
    ),
    quiet=(
        Example(
            """
class Model(nn.Module):
    mode = "a"

    def forward(self, x):
        return x * 2 if x.shape[0] in (1, 2) and self.mode in ["a", "b"] else x
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Membership,),
    check=check,
)
