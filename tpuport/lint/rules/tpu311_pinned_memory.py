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
    # A dataset or loader of another library may mean something else by the name.
    if not event.name.startswith("torch.") or not _pins(event.call):
        return False
    hit = gpu_hit(event)
    # Without a GPU to copy to, a loader only warns.
    if hit and event.name.endswith("DataLoader"):
        return Hit(severity=Severity.INFO)
    return hit


def _pins(call: ast.Call) -> bool:
    flags = keyword_nodes(call, "pin_memory")
    return any(isinstance(flag, ast.Constant) and flag.value is True for flag in flags)


RULE = Rule(
    id="TPU311",
    name="pinned-memory",
    severity=Severity.ERROR,
    summary="`.pin_memory()`, `.is_pinned()` and `pin_memory=True`",
    why="Pinned memory lets a GPU read host memory directly. torchax has no such operator, so in traced code "
    "the call ends the trace; elsewhere it raises without a GPU.",
    reason="pinned memory is for copies to a GPU; torchax has no such operator",
    remedy="remove it: jax copies arguments to the device by itself",
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
        # `non_blocking` has no effect without a GPU.
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
