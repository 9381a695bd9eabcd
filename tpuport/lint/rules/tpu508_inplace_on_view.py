"""TPU508: in-place operations on views."""

import ast
from typing import Final

from tpuport.lint.abstract_values import Tensor
from tpuport.lint.events import Call, Subscript
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_VIEWS: Final = frozenset(
    "view reshape flatten t transpose permute movedim moveaxis swapaxes swapdims chunk split unbind"
    " tensor_split unsqueeze squeeze narrow select diagonal expand expand_as unflatten detach view_as"
    " reshape_as ravel view_as_real".split()
)
_PROPERTIES: Final = frozenset("T mT H mH real imag".split())
# Of an indexed part, `x[0]`, torchax writes these to the part alone; its other operations reach the whole.
_STAY: Final = frozenset(
    "zero_ fill_ index_add_ index_fill_ index_copy_ addcmul_ lerp_ fill_diagonal_ triu_ tril_ masked_fill_".split()
)


def check(event: Call | Subscript, context: Context) -> Hit | None:
    """A change made through a view that nothing keeps: only the tensor behind it could show it."""
    if isinstance(event, Subscript):
        base = getattr(event.node, "value", None)
        lost = event.store and isinstance(event.base, Tensor) and _is_view(base)
        return Hit(fix=Applicability.NONE) if lost else None
    func = event.call.func
    if not (event.name.endswith("_") and not event.name.startswith("_") and isinstance(func, ast.Attribute)):
        return None
    if not isinstance(event.receiver, Tensor) or not _is_statement(event.call, context.source):
        return None
    if _is_view(func.value):
        return Hit(fix=Applicability.NONE)
    return Hit() if isinstance(func.value, ast.Subscript) and event.name in _STAY else None


def _is_view(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _PROPERTIES
    if isinstance(node, ast.Subscript):
        return _is_view(node.value)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS


def _is_statement(node: ast.Call, source: tuple[str, ...]) -> bool:
    """Whether the call stands alone, its result unused."""
    before = source[node.lineno - 1].encode()[: node.col_offset].strip()
    after = source[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset :].strip()
    return not before and (not after or after.startswith(b"#"))


RULE = Rule(
    id="TPU508",
    name="inplace-on-view",
    severity=Severity.WARNING,
    summary="an in-place operation on a view: `x.view(-1).zero_()`, `x.transpose(0, 1)[0] = 1`",
    why="In torch a view shares memory with its tensor, so a change through the one shows in the other. jax "
    "arrays share nothing; torchax imitates it for parts taken by index, `x[:, 0] += 1`, and there not "
    "for every operation. Through any other view the change is made to a copy and lost, without an error.",
    reason="under torchax this view is a copy: the change does not reach the tensor",
    remedy="assign by index, `x[:, 0] = value`, or build the new tensor: `torch.where`, `torch.cat`, `scatter`",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        y = x.clone()
        y.transpose(0, 1)[0] = 1.0
        y.view(-1)[:2].zero_()
        return y
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, 0] = 1.0
        y[0, :2] = 0.0
        return y
"""),
    quiet=(
        Example("""
class Model(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, 0].add_(1.0)
        y[0] += 1.0
        y.mul_(2.0)
        return y.view(-1).clamp_(min=0.0)
"""),
    ),
    harm="differs",
    events=(
        Call,
        Subscript,
    ),
    check=check,
    fix=Applicability.SAFE,
)
