"""TPU306: CUDA extensions."""

from tpuport.lint.events import Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules import gpu
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_BUILDERS = frozenset({"load", "load_inline", "CUDAExtension"})


def check(event: Use, context: Context) -> Hit | None:
    """A call that compiles or loads an extension of torch."""
    head, _, last = event.name.rpartition(".")
    if event.call is None or head != "torch.utils.cpp_extension" or last not in _BUILDERS:
        return None
    return gpu.hit(event) if last != "CUDAExtension" else Hit(severity=Severity.WARNING)


RULE = Rule(
    id="TPU306",
    name="cuda-extension",
    severity=Severity.ERROR,
    summary="a CUDA extension: `torch.utils.cpp_extension.load`, `load_inline`, `CUDAExtension`",
    why="An extension is compiled with nvcc for one kind of GPU, and torchax cannot look inside it: it sees "
    "one operator that it has no lowering for. Most have a plain torch definition beside them, written as"
    " the reference; XLA fuses that one itself.",
    reason="an extension is compiled by nvcc, and has no meaning for XLA",
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
