"""TPU307: flex_attention."""

from tpuport.lint.events import Call, Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule


def check(event: Use | Call, context: Context) -> Answer:
    """A call of `flex_attention`, or of what builds its block masks."""
    if event.call is None or not event.name.startswith("torch.nn.attention.flex_attention."):
        return False
    # Under another name: `attend = torch.compile(flex_attention)`.
    if isinstance(event, Call):
        return Hit(severity=Severity.ERROR if event.certain else Severity.WARNING)
    # Host code is not warned about: torch itself supports flex_attention on the CPU.
    return gpu_hit(event, warn_in_host_code=False)


RULE = Rule(
    id="TPU307",
    name="flex-attention",
    severity=Severity.ERROR,
    summary="`torch.nn.attention.flex_attention` in traced code, in `__init__` or at import",
    why="flex_attention compiles its score and mask functions with Triton, and supports a fixed list of "
    "devices: under torchax it raises `ValueError: FlexAttention is only supported on CUDA, CPU, HPU, or MPS "
    "devices`. Most of its masks (causal, sliding window, documents) can be passed to "
    "`scaled_dot_product_attention`, as `is_causal` or as a boolean mask.",
    reason="flex_attention does not support TPUs and raises",
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
        # The class alone does not compile anything.
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
    events=(Use, Call),
    check=check,
)
