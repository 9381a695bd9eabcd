"""TPU502: tensors kept in attributes."""

from tpuport.lint.events import AttributeStore
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import stored_tensor_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Rule


def check(event: AttributeStore, context: Context) -> Answer:
    """`self.x = tensor` in a module's traced code."""
    # Containers are TPU503, which has another remedy.
    return not event.in_container and stored_tensor_hit(event)


RULE = Rule(
    id="TPU502",
    name="attribute-written",
    severity=Severity.ERROR,
    summary="a tensor stored in an attribute of a module in traced code",
    why="While a program is traced, tensors are tracers. An attribute that is assigned a tracer still holds "
    "it when the tracing is over, and the compiled program does not run the assignment at all. Whatever "
    "reads the attribute later, at the latest the tracing for a second shape, ends with "
    "`UnexpectedTracerError`. tpuport restores buffers after tracing: what was assigned to them is lost.",
    reason="the attribute keeps a tracer, and compiled calls do not update it",
    remedy="return the tensor, or take it as an argument and return its new value, as a cache object does",
    bad=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.previous = None

    def forward(self, x):
        change = x if self.previous is None else x - self.previous.sum()
        self.previous = x * 1
        return change
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x, previous=None):
        return x if previous is None else x - previous.sum()
"""),
    quiet=(
        # A size is a Python int: no tracer is stored.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        self.length = x.shape[1]
        return x * self.length
"""),
    ),
    harm="leaks",
    events=(AttributeStore,),
    check=check,
)
