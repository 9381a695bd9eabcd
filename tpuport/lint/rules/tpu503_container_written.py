"""TPU503: tensors kept in containers."""

from tpuport.lint.events import AttributeStore
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import stored_tensor_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Rule


def check(event: AttributeStore, context: Context) -> Answer:
    """`self.x[key] = tensor`, `self.x.append(tensor)` in a module's traced code."""
    # Attributes themselves are TPU502.
    return event.in_container and stored_tensor_hit(event)


RULE = Rule(
    id="TPU503",
    name="container-written",
    severity=Severity.WARNING,
    summary="a tensor put into a list or dict of a module in traced code",
    why="A list or dict that outlives the call keeps the tracers that are put into it while a program is traced. "
    "`tpuport.compile` returns them from the program and puts the results into it, as in torch, and compiles again "
    "when it has grown. The loops of `tpuport.generate` and `tpuport.denoise`, layers that are scanned and your own "
    "`jax.jit` cannot: the tracers stay in it, and raise `UnexpectedTracerError` when they are used.",
    reason="in a loop on the device, or in a scanned layer, the container keeps tracers",
    remedy="collect tensors in a local list and return it; fill tables in `__init__`",
    bad=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.ones(x.shape[1], device=x.device)
        return x + self.tables[x.shape[1]]
"""),
    good=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(64), persistent=False)

    def forward(self, x):
        return x + self.table[: x.shape[1]]
"""),
    quiet=(
        # Both containers are local: they end with the call.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        parts = []
        parts.append(x * 2)
        kept = {"first": parts[0]}
        kept["second"] = x
        return parts[0] + kept["second"]
"""),
    ),
    harm="leaks from loops",
    events=(AttributeStore,),
    check=check,
)
