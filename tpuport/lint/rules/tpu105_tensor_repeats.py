"""TPU105: `repeat_interleave` with repeats that are a tensor."""

from tpuport.lint.abstract_values import is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import argument, is_call_of, is_missing_or_none
from tpuport.lint.rules.rule import Context, Example, Rule, named


def check(event: Call, context: Context) -> bool:
    """Repeats in a tensor, and no `output_size`."""
    if not is_call_of(event, "repeat_interleave"):
        return False
    # `repeat_interleave(repeats)` has the repeats as its only tensor.
    repeats = argument(event, 1, "repeats") or argument(event, 0, "input")
    return is_traced(repeats) and is_missing_or_none(event.keywords.get("output_size"))


RULE = Rule(
    id="TPU105",
    name="tensor-repeats",
    severity=Severity.ERROR,
    summary="`repeat_interleave` with a tensor of repeats and no `output_size`",
    why="The result is as long as the sum of the repeats, and that sum does not exist while the program is "
    "traced.",
    reason="the result is as long as the sum of the repeats, which is not known while tracing",
    remedy="pass `output_size=` where the length is known, or find each element's source with `searchsorted` "
    "over `repeats.cumsum(0)`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, repeats: torch.Tensor):
        return torch.repeat_interleave(x, repeats, dim=0)
""",
        "(torch.randn(3, 2), torch.tensor([1, 2, 1]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    total = 4

    def forward(self, x, repeats: torch.Tensor):
        place = torch.arange(self.total, device=x.device)
        source = (repeats.cumsum(0) <= place[:, None]).sum(1)
        return x[source]
""",
        "(torch.randn(3, 2), torch.tensor([1, 2, 1]))",
    ),
    quiet=(
        # Every element is repeated equally often, so the length is known.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return x.repeat_interleave(2, dim=1)
"""
        ),
    ),
    events=(Call,),
    calls=named("repeat_interleave"),
    check=check,
)
