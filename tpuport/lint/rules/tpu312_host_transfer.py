"""TPU312: `.cpu()` and `.to("cpu")` in traced code."""

import re
from typing import Final

from tpuport.lint.abstract_values import Static, is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import following_text
from tpuport.lint.rules.rule import Context, Example, Rule, named

# Rules of the family TPU2 report these.
_READ: Final = re.compile(r"\s*\.(numpy|item|tolist)\(")


def check(event: Call, context: Context) -> bool:
    """A tensor sent to the host, unless the next call reads it there, which has a rule
    of its own.
    """
    if event.name not in ("cpu", "to") or not is_traced(event.receiver):
        return False
    if _READ.match(following_text(event.call, context)):
        return False
    # Of code that cannot be changed, `.to` leaves the tensor where it is.
    if event.name == "to" and context.trusted:
        return False
    # The device is the first argument or a keyword; one that is not a literal is left
    # alone.
    devices = [*event.args[:1], event.keywords.get("device")]
    return event.name == "cpu" or any(
        isinstance(x, Static) and x.constant == "cpu" for x in devices
    )


RULE = Rule(
    id="TPU312",
    name="host-transfer",
    severity=Severity.ERROR,
    summary='a tensor copied to the host in traced code: `.cpu()`, `.to("cpu")`',
    why="A copy to the host needs values, and while the program is traced there are none: torchax raises "
    "`TracerArrayConversionError`. Computation on the host belongs before or after the compiled call.",
    reason="a copy to the host needs values, and while tracing there are none",
    remedy="leave the tensor on the device, and copy the result to the host after the compiled call",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x.cpu().softmax(-1)
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x.softmax(-1)
"""),
    quiet=(
        # The transfer is outside the traced code.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2

    def save(self, x, path):
        torch.save(x.cpu(), path)
"""),
        # The tensor is on the host already.
        Example("""
class Model(nn.Module):
    def forward(self, x, mask=None):
        mask = torch.ones(x.shape[-1]) if mask is None else mask
        columns = torch.arange(x.shape[-1]).to(mask.device)
        return x * (columns >= 0).to(x.device)
"""),
    ),
    events=(Call,),
    calls=named("cpu", "to"),
    check=check,
    # On a GPU, the host needs the copy: `.numpy()` may follow it in another line.
    fix=Applicability.UNSAFE,
)
