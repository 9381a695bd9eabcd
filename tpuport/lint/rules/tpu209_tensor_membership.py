"""TPU209: `in` with tensors."""

from typing import Final

from tpuport.lint.abstract_values import Sequence, is_traced
from tpuport.lint.events import Membership
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule

# These look for a hash, and a tensor's hash is its identity.
_HASHED: Final = frozenset({"set", "dict_views"})

# A tensor is not equal to one of these, whatever its values are.
_NEVER_EQUAL: Final = frozenset({"str", "none"})


def check(event: Membership, context: Context) -> bool:
    """A tensor looked for in a list, or anything looked for in a tensor or a list of
    tensors, but not a text.
    """
    container = event.container
    # What texts are looked for in has keys, and is not a tensor.
    if event.item.kind == "str":
        return False
    if not isinstance(container, Sequence):
        return is_traced(container)
    if container.kind in _HASHED:
        return False
    parts = container.items or (container.element,)
    is_compared = any(part.kind not in _NEVER_EQUAL for part in parts)
    return container.tensors or (is_compared and is_traced(event.item))


RULE = Rule(
    id="TPU209",
    name="tensor-membership",
    severity=Severity.ERROR,
    summary="`in` on a tensor, or a search for a tensor in a list",
    why="`in` compares elements and needs the truth of each comparison, which does not exist while the "
    "program is traced.",
    reason="`in` compares values, and while tracing there are none",
    remedy="use `(x == value).any()` or `torch.isin`, whose results are tensors, and `torch.where` instead "
    "of the branch",
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
        # Python numbers and strings are compared, not tensors.
        Example(
            """
class Model(nn.Module):
    mode = "a"

    def forward(self, x):
        return x * 2 if x.shape[0] in (1, 2) and self.mode in ["a", "b"] else x
""",
            "(torch.randn(2, 4),)",
        ),
        # No tensor equals a text.
        Example(
            """
class Model(nn.Module):
    def forward(self, x, layers: torch.Tensor):
        return x if layers in ["all", "last"] else x * layers
""",
            "(torch.randn(2, 4), torch.ones(4))",
        ),
    ),
    events=(Membership,),
    check=check,
)
