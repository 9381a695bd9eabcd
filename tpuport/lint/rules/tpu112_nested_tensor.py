"""TPU112: nested (jagged) tensors."""

from typing import Final

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule

_OTHER_NAMES: Final = frozenset({"torch._nested_tensor_from_mask", "to_padded_tensor"})


def _is_nested(name: str) -> bool:
    # `to_padded_tensor` is a method that only nested tensors have.
    return name.startswith("torch.nested.") or name in _OTHER_NAMES


def check(event: Call, context: Context) -> bool:
    """Anything of `torch.nested`, and the methods of nested tensors."""
    return _is_nested(event.name)


RULE = Rule(
    id="TPU112",
    name="nested-tensor",
    severity=Severity.ERROR,
    summary="nested (jagged) tensors: `torch.nested.*`",
    why="The rows of a nested tensor have different lengths. XLA only has arrays of fixed shapes, and "
    "torchax has no nested tensors.",
    reason="rows of different lengths do not form an array that XLA can compile for",
    remedy="pad to one length and carry a mask",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        nested = torch.nested.nested_tensor([x, y])
        return nested.to_padded_tensor(0.0)
""",
        "(torch.randn(2, 4), torch.randn(3, 4))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, y):
        return torch.stack([F.pad(x, (0, 0, 0, 1)), y])
""",
        "(torch.randn(2, 4), torch.randn(3, 4))",
    ),
    events=(Call,),
    calls=_is_nested,
    check=check,
)
