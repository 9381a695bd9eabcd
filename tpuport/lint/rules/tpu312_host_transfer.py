"""TPU312: `.cpu()` and `.to("cpu")` in traced code."""

from tpuport.lint.abstract_values import Static, Tensor
from tpuport.lint.events import Call
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: Call, context: Context) -> Hit | None:
    """A tensor sent to the host."""
    if not isinstance(event.receiver, Tensor) or event.name not in {"cpu", "to"}:
        return None
    if event.name == "cpu":
        return Hit()
    given = [*event.args[:1], event.keywords.get("device")]
    return Hit() if any(isinstance(value, Static) and value.constant == "cpu" for value in given) else None


RULE = Rule(
    id="TPU312",
    name="host-transfer",
    severity=Severity.ERROR,
    summary='a tensor sent to the host in traced code: `.cpu()`, `.to("cpu")`',
    why="A copy to the host needs values, and while the program is traced there are none: torchax raises "
    "`TracerArrayConversionError`. What is computed on the host belongs before or after the compiled "
    "call.",
    reason="a copy to the host needs values, and while tracing there are none",
    remedy="leave the tensor on the device, and take the result to the host after the compiled call",
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
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2

    def save(self, x, path):
        torch.save(x.cpu(), path)
"""),
    ),
    events=(Call,),
    check=check,
    fix=Applicability.SAFE,
)
