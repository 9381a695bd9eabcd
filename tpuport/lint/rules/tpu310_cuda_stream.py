"""TPU310: CUDA streams and events."""

from typing import Final

from tpuport.lint.events import Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Rule

_STREAMS: Final = frozenset(
    f"torch.cuda.{name}"
    for name in "Stream stream current_stream default_stream ExternalStream Event".split()
) | {".record_stream", ".wait_stream"}


def check(event: Use, context: Context) -> Answer:
    """A stream or an event that is created or used."""
    # A type annotation names the class without a call.
    return event.name in _STREAMS and event.call is not None and gpu_hit(event)


RULE = Rule(
    id="TPU310",
    name="cuda-stream",
    severity=Severity.ERROR,
    summary="CUDA streams and events",
    why="Streams order the work of a GPU by hand. XLA orders a program by its data dependencies, and "
    "overlaps copies with computation by itself; there is nothing to wait for inside it. The classes raise "
    "on a machine without a GPU, unless the code is imported and built in `with tpuport.gpu_shim():`.",
    reason="streams and events belong to CUDA, and raise without a GPU",
    remedy="remove them: XLA orders and overlaps the work of a program by itself",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            return x * 2
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2
"""),
    quiet=(
        # The code asks for a GPU first.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return x * 2
"""),
    ),
    harm="cuda",
    events=(Use,),
    check=check,
)
