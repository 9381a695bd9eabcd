"""TPU311: pinned memory."""

import ast
from typing import Final

from tpuport.lint.events import (
    Use,
)
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import (
    gpu_hit,
    keyword_nodes,
)
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_METHODS: Final = frozenset({".pin_memory", ".is_pinned", "torch.Tensor.pin_memory"})


def check(event: Use, context: Context) -> Answer:
    """`.pin_memory()`, and `pin_memory=True` given to anything of torch."""
    if event.call is None:
        return False
    if event.name in _METHODS:
        return gpu_hit(event)
    if not event.name.startswith("torch.") or not _pins(event.call):
        return False
    hit = gpu_hit(event)
    # Without a GPU to copy to, a loader only warns.
    return Hit(severity=Severity.INFO) if hit and event.name.endswith("DataLoader") else hit


def _pins(call: ast.Call) -> bool:
    flags = keyword_nodes(call, "pin_memory")
    return any(isinstance(flag, ast.Constant) and flag.value is True for flag in flags)


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
