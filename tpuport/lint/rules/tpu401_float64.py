"""TPU401: float64."""

from tpuport.lint.abstract_values import is_tensor
from tpuport.lint.events import Call
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import dtype_hits
from tpuport.lint.rules.rule import Answer, Context, Example, Rule


def check(event: Call, context: Context) -> Answer:
    """A cast to float64, or a tensor created in it."""
    # An unknown object may be a module, whose `double` does not run in traced code.
    if event.name == "double":
        return is_tensor(event.receiver)
    return dtype_hits(event, "float64")


RULE = Rule(
    id="TPU401",
    name="float64",
    severity=Severity.WARNING,
    summary="float64 in traced code: `.double()`, `dtype=torch.float64`",
    why="jax disables 64-bit types by default, and a TPU has none: under torchax a float64 tensor silently "
    "becomes float32. Code that needs the extra digits, above all rotary tables for long contexts, computes "
    "other numbers than on the GPU; code that does not may as well use float32.",
    reason="on TPU float64 silently becomes float32, with 7 digits instead of 16",
    remedy="use float32; compute what needs the digits once on the host, in `__init__`, and keep the result "
    "in a buffer",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        position = x.to(torch.float64) + 1e-9
        return (position - 1.0) * 1e9
""",
        "(torch.ones(2, 4),)",
    ),
    good=Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        offset = torch.full((4,), 1.0, dtype=torch.float64) + 1e-9 - 1.0
        self.register_buffer("offset", offset.float() * 1e9)

    def forward(self, x):
        return (x - 1.0) * 1e9 + self.offset
""",
        "(torch.ones(2, 4),)",
    ),
    quiet=(
        # A comparison of dtypes is decided while tracing.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x.float() if x.dtype == torch.float64 else x
"""),
    ),
    harm="precision",
    events=(Call,),
    check=check,
    fix=Applicability.UNSAFE,
)
