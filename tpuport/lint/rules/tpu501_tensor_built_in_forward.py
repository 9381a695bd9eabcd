"""TPU501: tables built in forward."""

import re
from typing import Final

from tpuport.lint.abstract_values import Tensor, Unknown
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import following_text, is_call_of
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule, named

_TABLES: Final = ("arange", "linspace", "logspace", "tril_indices", "triu_indices")
_OTHERS: Final = ("ones", "zeros", "full", "eye", "tensor")
# What moves the tensor to the device, or to Python: on the same line, or at the start
# of the next.
_MOVED: Final = re.compile(
    r".*\.(to|type_as|tolist|item|numpy|cuda)\(|[^\n]*\n[\s)]*\.to\("
)


def check(event: Call, context: Context) -> Answer:
    """A table whose arguments are all static, or any tensor that is created on the host
    and left there.
    """
    if event.receiver is not None or not is_call_of(event, *_TABLES, *_OTHERS):
        return False
    # An argument that is a tensor is data, and an unknown one may be.
    if not event.args or any(
        isinstance(value, Tensor | Unknown) for value in event.args
    ):
        return False
    if _stays_on_host(event, context):
        reason = "without `device=` the tensor is on the host: combining it with one on the device raises"
        return Hit(
            reason,
            "pass `device=x.device`, or keep it in a buffer",
            severity=Severity.WARNING,
        )
    # Ones and zeros cost nothing: XLA does not store them.
    return is_call_of(event, *_TABLES)


def _stays_on_host(event: Call, context: Context) -> bool:
    call = event.call
    # `**kwargs` may contain a device.
    if any(keyword.arg in {None, "device"} for keyword in call.keywords):
        return False
    # torch accepts a single element of the host beside tensors of any device.
    if isinstance(event.result, Tensor) and event.result.ndim == 0:
        return False
    return not _MOVED.match(following_text(call, context))


RULE = Rule(
    id="TPU501",
    name="tensor-built-in-forward",
    severity=Severity.INFO,
    summary="a table built from shapes in traced code, or a tensor made there without `device=`",
    why="A table that depends only on shapes contains the same numbers in every call, but every call "
    "computes it again, along with what follows from it: positions, angles, their sines. Without `device=` "
    "it also stays on the host while everything else is on the device, and the first operation that combines "
    "the two raises.",
    reason="the table contains the same numbers in every call, and every call computes it again",
    remedy="compute it once in `__init__` for the longest length, register it with `register_buffer(..., "
    "persistent=False)` and slice it",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        position = torch.arange(x.shape[1], device=x.device)
        return x + (position / 100.0).sin()
""",
        "(torch.randn(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", (torch.arange(64) / 100.0).sin(), persistent=False)

    def forward(self, x):
        return x + self.table[: x.shape[1]]
""",
        "(torch.randn(2, 4),)",
    ),
    quiet=(
        # `new_zeros` is created on the device of its tensor.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x + x.new_zeros(x.shape[1])
"""),
    ),
    harm="slow",
    events=(Call,),
    calls=named(*_TABLES, *_OTHERS),
    check=check,
)
