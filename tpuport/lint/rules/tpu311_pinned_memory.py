"""TPU311: pinned memory."""

import ast

from tpuport.lint.events import Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules import gpu
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_METHODS = frozenset({".pin_memory", ".is_pinned", "torch.Tensor.pin_memory"})


def check(event: Use, context: Context) -> Hit | None:
    """`.pin_memory()`, and `pin_memory=True` given to anything of torch."""
    if event.call is None:
        return None
    if event.name in _METHODS:
        return gpu.hit(event)
    if not event.name.startswith("torch."):
        return None
    found = gpu.hit(event) if any(_pins(keyword) for keyword in event.call.keywords) else None
    # A loader without a GPU to copy to only warns.
    return Hit(severity=Severity.INFO) if found and event.name.endswith("DataLoader") else found


def _pins(keyword: ast.keyword) -> bool:
    return (
        keyword.arg == "pin_memory"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
    )


RULE = Rule(
    id="TPU311",
    name="pinned-memory",
    severity=Severity.ERROR,
    summary="`.pin_memory()`, `.is_pinned()` and `pin_memory=True`",
    why="Pinned memory lets a GPU read the host's memory directly. torchax has no such operator, so in traced"
    " code the call ends the trace; elsewhere it raises without a GPU.",
    reason="pinned memory is for copies to a GPU; torchax has no such operator",
    remedy="drop it: jax copies arguments to the device itself",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x.pin_memory() * 2
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2
"""),
    quiet=(
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x.to(x.device, non_blocking=True) * 2
"""),
    ),
    events=(Use,),
    check=check,
    fix=Applicability.SAFE,
)
