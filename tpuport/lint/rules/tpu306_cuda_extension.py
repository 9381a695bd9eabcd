"""TPU306: CUDA extensions."""

from typing import Final

from tpuport.lint.events import Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_LOADERS: Final = frozenset(
    {"torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline"}
)


def check(event: Use, context: Context) -> Answer:
    """A call that compiles or loads an extension of torch."""
    if event.call is None:
        return False
    # A build script declares its extension; nothing is compiled yet.
    if event.name == "torch.utils.cpp_extension.CUDAExtension":
        return Hit(severity=Severity.WARNING)
    # `load` compiles at once, with nvcc, wherever it runs.
    return event.name in _LOADERS and gpu_hit(event)


RULE = Rule(
    id="TPU306",
    name="cuda-extension",
    severity=Severity.ERROR,
    summary="a CUDA extension: `torch.utils.cpp_extension.load`, `load_inline`, `CUDAExtension`",
    why="An extension is compiled with nvcc for one kind of GPU, and torchax cannot look inside it: it sees "
    "a single operator for which it has no lowering. Most extensions come with a reference definition in "
    "plain torch; XLA fuses that one by itself.",
    reason="an extension is compiled by nvcc, and means nothing to XLA",
    remedy="call the plain torch definition that the extension replaces, or write the kernel in Pallas",
    bad=Example("""
from torch.utils.cpp_extension import load_inline

kernels = load_inline("kernels", "", cuda_sources="__global__ void twice(float* x) { x[threadIdx.x] *= 2; }")


class Model(nn.Module):
    def forward(self, x):
        return kernels.twice(x)
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2
"""),
    quiet=(
        # This `load` reads weights.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return torch.load and x * 2
"""),
    ),
    harm="import",
    events=(Use,),
    check=check,
)
