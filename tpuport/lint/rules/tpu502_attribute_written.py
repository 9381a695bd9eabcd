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
    severity=Severity.WARNING,
    summary="a tensor stored in an attribute of a module in traced code",
    why="While a program is traced, tensors are tracers. `tpuport.compile` returns what traced code assigns from the "
    "program, and assigns it after the call, as in torch. The loops of `tpuport.generate` and `tpuport.denoise`, "
    "layers that are scanned and your own `jax.jit` cannot: the attribute keeps a tracer there, and whatever reads it "
    "later, such as the tracing for a second shape, ends with `UnexpectedTracerError`.",
    reason="in a loop on the device, or in a scanned layer, the attribute keeps a tracer",
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
    harm="leaks from loops",
    events=(AttributeStore,),
    check=check,
)
