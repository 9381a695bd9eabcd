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
    severity=Severity.ERROR,
    summary="a tensor put into a list or dict of a module in traced code",
    why="A list or dict that outlives the call keeps the tracers that are put into it while the program is "
    "traced. A compiled call neither adds to it nor reads it, so a cache that is filled this way is filled "
    "once, with tracers that raise `UnexpectedTracerError` when they are used.",
    reason="the container keeps a tracer, and compiled calls do not fill it",
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
    harm="leaks",
    events=(AttributeStore,),
    check=check,
)
