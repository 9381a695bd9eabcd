"""TPU405: dense attention masks."""

import ast
import re

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import is_call_of, minus_infinity
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_SMALL = re.compile("chunk|block|window|patch|kernel")
_FILLED = frozenset({"ones", "zeros", "full", "ones_like", "new_ones", "new_full", "new_zeros"})


def check(event: Call, context: Context) -> Hit | None:
    """`tril`, `triu` of a square made on the spot, and a square of minus infinity."""
    if is_call_of(event, "tril", "triu"):
        func = event.call.func
        made = (
            event.call.args[:1]
            if event.receiver is None
            else [func.value]
            if isinstance(func, ast.Attribute)
            else []
        )
        return Hit() if any(_square(node) for node in made) else None
    if is_call_of(event, "full", "new_full") and any(minus_infinity(node) for node in event.call.args):
        return Hit() if _square(event.call) else None
    return None


def _square(node: ast.expr) -> bool:
    """A tensor made with its last two sizes equal, and not written out as a small number."""
    if not isinstance(node, ast.Call) or _name(node.func) not in _FILLED:
        return False
    sizes = node.args
    if sizes and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = sizes[0].elts
    last = [size for size in sizes if not minus_infinity(size)][-2:]
    same = len(last) == 2 and ast.dump(last[0]) == ast.dump(last[1])
    # A chunk, a block or a window has the same small size whatever the length is.
    return same and not isinstance(last[0], ast.Constant) and not _SMALL.search(ast.unparse(last[0]))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


RULE = Rule(
    id="TPU405",
    name="dense-mask",
    severity=Severity.WARNING,
    summary="a dense `[.., S, S]` mask built in traced code: `torch.tril(torch.ones(S, S))`",
    why="A mask of all positions against all positions takes S * S entries for each call, a gigabyte at "
    "32,000 positions in bfloat16, and an attention kernel that is given one has to read all of it. The "
    "kernels know what causal means without a mask, and skip the blocks it hides, half of the work.",
    reason="the mask takes S * S memory, and keeps attention from the kernel's causal path",
    remedy="say `is_causal=True` to `F.scaled_dot_product_attention`; give padding as a `[B, 1, 1, S]` mask",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, q, k, v):
        length = q.shape[-2]
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=q.device))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
        "tuple(torch.randn(1, 2, 8, 16) for _ in range(3))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
        "tuple(torch.randn(1, 2, 8, 16) for _ in range(3))",
    ),
    quiet=(
        Example("""
class Model(nn.Module):
    chunk_size = 4

    def forward(self, x):
        mask = torch.tril(torch.ones(self.chunk_size, self.chunk_size, device=x.device))
        return x @ mask
"""),
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("corner", torch.tril(torch.ones(4, 4)))

    def forward(self, x):
        return x @ self.corner.to(x.dtype)
"""),
    ),
    harm="memory",
    events=(Call,),
    check=check,
)
