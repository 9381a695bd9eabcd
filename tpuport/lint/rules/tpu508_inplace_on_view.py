"""TPU508: in-place operations on views."""

import ast
from typing import Final

from tpuport.lint.abstract_values import is_tensor
from tpuport.lint.events import (
    Call,
    Subscript,
)
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_VIEWS: Final = frozenset(
    "view reshape flatten t transpose permute movedim moveaxis swapaxes swapdims chunk split unbind"
    " tensor_split unsqueeze squeeze narrow select diagonal expand expand_as unflatten detach view_as"
    " reshape_as ravel view_as_real".split()
)
_VIEW_PROPERTIES: Final = frozenset("T mT H mH real imag".split())
# torchax writes these only to the indexed part of `x[0]`; its other in-place operations reach the whole tensor.
_LOST_ON_PARTS: Final = frozenset(
    "zero_ fill_ index_add_ index_fill_ index_copy_ addcmul_ lerp_ fill_diagonal_ triu_ tril_ masked_fill_".split()
)


def check(event: Call | Subscript, context: Context) -> Answer:
    """A change made through a view that nothing keeps: only the tensor behind it could show it."""
    if isinstance(event, Subscript):
        is_lost = event.store and is_tensor(event.base) and _is_view(getattr(event.node, "value", None))
        return is_lost and Hit(fix=Applicability.NONE)
    func = event.call.func
    # torch's in-place methods end with an underscore; `__iadd__` and private methods are not among them.
    is_in_place = event.name.endswith("_") and not event.name.startswith("_")
    if not is_in_place or not isinstance(func, ast.Attribute) or not is_tensor(event.receiver):
        return False
    # A result that is used has the change: `y = x.view(-1).clamp_(0)`.
    if not _is_statement(event.call, context.source):
        return False
    if _is_view(func.value):
        return Hit(fix=Applicability.NONE)
    return isinstance(func.value, ast.Subscript) and event.name in _LOST_ON_PARTS


def _is_view(node: ast.expr | None) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in _VIEW_PROPERTIES
        case ast.Subscript(value=base):
            return _is_view(base)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _VIEWS
    return False


def _is_statement(node: ast.Call, source: tuple[str, ...]) -> bool:
    """Whether the call is alone on its line, so that nothing uses its result."""
    before = source[node.lineno - 1].encode()[: node.col_offset].strip()
    after = source[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset :].strip()
    return not before and (not after or after.startswith(b"#"))


RULE = Rule(
    id="TPU508",
    name="inplace-on-view",
    severity=Severity.WARNING,
    summary="an in-place operation on a view: `x.view(-1).zero_()`, `x.transpose(0, 1)[0] = 1`",
    why="In torch a view shares memory with its tensor, so a change to one shows in the other. jax arrays "
    "share nothing; torchax imitates it for parts taken by index, `x[:, 0] += 1`, but not for every "
    "operation. Through any other view the change goes to a copy and is lost, without an error.",
    reason="under torchax this view is a copy: the change does not reach the tensor",
    remedy="assign by index, `x[:, 0] = value`, or build the new tensor: `torch.where`, `torch.cat`, "
    "`scatter`",
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
        # Parts by index, whole tensors, and a view whose result is used.
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
