"""TPU304: autocast."""

import ast
from typing import Final

from tpuport.lint.events import (
    Use,
)
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import (
    keyword_nodes,
)
from tpuport.lint.rules.rule import Context, Example, Rule

_NAMES: Final = frozenset(
    {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast_mode.autocast"}
)


def check(event: Use, context: Context) -> bool:
    """Autocast for the GPU anywhere in model code, and any autocast in traced code, unless it is switched off."""
    if event.name not in _NAMES or event.call is None or event.checked or _is_off(event.call):
        return False
    # In traced code it has no effect for any device.
    if event.traced:
        return True
    # Outside traced code, autocast for the CPU does what it says.
    return (event.decorator or event.in_init) and _is_for_cuda(event.name, event.call)


def _is_off(call: ast.Call) -> bool:
    flags = keyword_nodes(call, "enabled")
    return any(isinstance(flag, ast.Constant) and not flag.value for flag in flags)


def _is_for_cuda(name: str, call: ast.Call) -> bool:
    # `torch.cuda.amp.autocast` takes no device.
    if name.startswith("torch.cuda."):
        return True
    devices = [*call.args[:1], *keyword_nodes(call, "device_type")]
    return any(isinstance(device, ast.Constant) and device.value == "cuda" for device in devices)


RULE = Rule(
    id="TPU304",
    name="cuda-autocast",
    severity=Severity.WARNING,
    summary='`torch.autocast("cuda")` and the like in traced code',
    why="Autocast works per device in torch's own dispatcher, which does not know torchax: the block is "
    "traced as if it were not there. Products that ran in bfloat16 on the GPU run in the dtype of the "
    "weights, usually float32: more memory, a fraction of the speed, different numbers. With `enabled=False` "
    "nothing changes, so that is not reported.",
    reason="autocast does nothing under torchax: the block computes in the dtype of its inputs and weights",
    remedy="port the weights in the intended dtype, `tpuport.port(model, dtype=torch.bfloat16)`, and cast "
    "inputs where the block begins",
    bad=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.proj(x)
"""),
    good=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        dtype = torch.bfloat16
        return F.linear(x.to(dtype), self.proj.weight.to(dtype), self.proj.bias.to(dtype))
"""),
    quiet=(
        # Switched off, autocast changes nothing.
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.proj(x.float())
"""),
    ),
    harm="differs",
    events=(Use,),
    check=check,
    fix=Applicability.SAFE,
)
