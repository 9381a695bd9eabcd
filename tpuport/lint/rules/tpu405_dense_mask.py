"""TPU405: dense attention masks."""

import ast
import re
from typing import Final

from tpuport.lint.events import (
    Call,
)
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import (
    is_call_of,
    is_minus_infinity,
)
from tpuport.lint.rules.rule import Context, Example, Rule, named

# A chunk, a block or a window has the same small size whatever the length is.
_SMALL: Final = re.compile("chunk|block|window|patch|kernel")
_FACTORIES: Final = frozenset(
    {"ones", "zeros", "full", "ones_like", "new_ones", "new_full", "new_zeros"}
)


def check(event: Call, context: Context) -> bool:
    """`tril`, `triu` of a square that is built for it, and a square of minus
    infinity.
    """
    # `tril` of a tensor that exists already is not a mask that is built for the call.
    if is_call_of(event, "tril", "triu"):
        return any(map(_is_square, _operand_nodes(event)))
    if is_call_of(event, "full", "new_full") and any(
        map(is_minus_infinity, event.call.args)
    ):
        return _is_square(event.call)
    return False


def _operand_nodes(event: Call) -> list[ast.expr]:
    """The expression of the tensor that a function or method works on."""
    func = event.call.func
    if event.receiver is None:
        return event.call.args[:1]
    return [func.value] if isinstance(func, ast.Attribute) else []


def _is_square(node: ast.expr) -> bool:
    """A new tensor whose last two sizes are equal, and not small."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if (
            name in _FACTORIES
        ):
            sizes = node.args
        case _:
            return False
    match sizes:
        case [ast.Tuple() | ast.List() as shape, *_]:
            sizes = shape.elts
    # `full(n, n, -inf)` ends with the value.
    match [size for size in sizes if not is_minus_infinity(size)][-2:]:
        case [ast.Constant(), _]:
            return False
        case [rows, columns] if ast.dump(rows) == ast.dump(columns):
            return not _SMALL.search(ast.unparse(rows))
    return False


RULE = Rule(
    id="TPU405",
    name="dense-mask",
    severity=Severity.WARNING,
    summary="a dense `[.., S, S]` mask built in traced code: `torch.tril(torch.ones(S, S))`",
    why="A mask of all positions against all positions has S * S entries in every call, two gigabytes at "
    "32,000 positions in bfloat16, and an attention kernel that gets one has to read all of it. The kernels "
    "need no mask for causal attention, and skip the blocks that it hides, half of the work.",
    reason="the mask takes S * S memory, and keeps attention off the kernel's causal path",
    remedy="pass `is_causal=True` to `F.scaled_dot_product_attention`, and padding as a `[B, 1, 1, S]` mask",
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
        # A chunk stays small whatever the length.
        Example("""
class Model(nn.Module):
    chunk_size = 4

    def forward(self, x):
        mask = torch.tril(torch.ones(self.chunk_size, self.chunk_size, device=x.device))
        return x @ mask
"""),
        # Built once, in `__init__`, and small.
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
    calls=named("tril", "triu", "full", "new_full"),
    check=check,
)
