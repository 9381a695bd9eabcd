"""TPU307: flex_attention."""

from tpuport.lint.events import Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules import gpu
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: Use, context: Context) -> Hit | None:
    """A call of `flex_attention`, or of what builds its block masks."""
    if not event.name.startswith("torch.nn.attention.flex_attention.") or event.call is None:
        return None
    return gpu.hit(event, host=False) if event.traced or event.in_init or event.at_import else None


RULE = Rule(
    id="TPU307",
    name="flex-attention",
    severity=Severity.ERROR,
    summary="`torch.nn.attention.flex_attention` in traced code, in `__init__` or at import",
    why="flex_attention compiles its score and mask functions with Triton, and knows a fixed list of devices:"
    " under torchax it raises `ValueError: FlexAttention is only supported on CUDA, CPU, HPU, or MPS "
    "devices`. What most of its masks say, causal, sliding window, documents, "
    "`scaled_dot_product_attention` says with `is_causal` or a boolean mask.",
    reason="flex_attention knows no TPU and raises",
    remedy="use `F.scaled_dot_product_attention` with `is_causal=True` or a boolean mask; with transformers, "
    '`attn_implementation="sdpa"`',
    bad=Example(
        """
from torch.nn.attention.flex_attention import flex_attention


class Model(nn.Module):
    def forward(self, q, k, v):
        return flex_attention(q, k, v)
""",
        "tuple(torch.randn(1, 2, 8, 16) for _ in range(3))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)
""",
        "tuple(torch.randn(1, 2, 8, 16) for _ in range(3))",
    ),
    quiet=(
        Example(
            """
from torch.nn.attention.flex_attention import BlockMask


class Model(nn.Module):
    def forward(self, q, k, v):
        mask = None if isinstance(q, BlockMask) else k.new_ones(8, 8, dtype=torch.bool)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
            "tuple(torch.randn(1, 2, 8, 16) for _ in range(3))",
        ),
    ),
    events=(Use,),
    check=check,
)
