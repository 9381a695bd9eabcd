"""TPU404: masks of minus infinity."""

from tpuport.lint.events import Call
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import is_call_of, is_minus_infinity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule, named


def check(event: Call, context: Context) -> Answer:
    """`masked_fill(mask, -inf)`, `torch.where(mask, x, -inf)`: all entries of a row may
    be masked.
    """
    if not is_call_of(event, "masked_fill", "masked_fill_", "where"):
        return False
    # As it is written, because a number that is computed elsewhere may be finite.
    nodes = [*event.call.args, *(keyword.value for keyword in event.call.keywords)]
    return [Hit(node=node) for node in nodes if is_minus_infinity(node)][:1]


RULE = Rule(
    id="TPU404",
    name="infinite-mask",
    severity=Severity.INFO,
    summary="a mask filled with minus infinity",
    why="The softmax of a row that is entirely minus infinity is NaN. On the GPU, where batches are packed "
    "to their real lengths, there may be no such row. On TPU shapes are fixed and batches are padded, so "
    "some rows are all padding, and one NaN spreads through every sum that includes it, with a gradient of "
    "NaN even if a mask hides it later. The smallest finite number gives the same weights everywhere else.",
    reason="a row that is masked entirely, as padding to a fixed length is, becomes NaN in the softmax",
    remedy="fill with `torch.finfo(x.dtype).min`, or pass the boolean mask to "
    "`F.scaled_dot_product_attention`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, scores, mask):
        return scores.masked_fill(mask, float("-inf")).softmax(-1)
""",
        "(torch.randn(2, 4), torch.tensor([[False, False, True, True], [True, True, True, True]]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, scores, mask):
        return scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1)
""",
        "(torch.randn(2, 4), torch.tensor([[False, False, True, True], [True, True, True, True]]))",
    ),
    quiet=(
        # A finite fill.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, 0.0)
"""),
    ),
    harm="nan",
    events=(Call,),
    calls=named("masked_fill", "masked_fill_", "where"),
    check=check,
    fix=Applicability.UNSAFE,
)
