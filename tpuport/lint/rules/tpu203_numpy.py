"""TPU203: tensors passed to NumPy."""

from typing import Final

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import has_tensor, is_call_of
from tpuport.lint.rules.rule import Context, Example, Rule

# SciPy makes arrays of NumPy from what it gets.
_LIBRARIES: Final = ("numpy.", "scipy.")
_METHODS: Final = ("numpy", "__array__")


def _may_read(name: str) -> bool:
    return name in _METHODS or name.startswith(_LIBRARIES)


def check(event: Call, context: Context) -> bool:
    """`.numpy()`, and functions of NumPy and SciPy that get a tensor."""
    if event.receiver is not None:
        return is_call_of(event, *_METHODS)
    # NumPy computes with shapes and numbers as it does outside a trace.
    return event.name.startswith(_LIBRARIES) and any(map(has_tensor, event.args))


RULE = Rule(
    id="TPU203",
    name="numpy",
    severity=Severity.ERROR,
    summary="`.numpy()`, or a NumPy function of a tensor, in traced code",
    why="NumPy works on values in host memory. While the program is traced there are none, and torchax "
    "raises `TracerArrayConversionError`.",
    reason="NumPy needs values, and while tracing there are none",
    remedy="use the torch function of the same name, or compute it before the call",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy().cumsum(-1))
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x.cumsum(-1)
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        # NumPy on a Python int that comes from a shape.
        Example(
            """
import numpy as np


class Model(nn.Module):
    def forward(self, x):
        return x * float(np.sqrt(x.shape[-1]))
""",
            "(torch.randn(2, 4),)",
        ),
    ),
    events=(Call,),
    calls=_may_read,
    check=check,
)
