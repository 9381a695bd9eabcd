"""TPU301: `.cuda()`."""

from tpuport.lint.events import Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Rule


def check(event: Use, context: Context) -> Answer:
    """The method of a tensor or a module; not in a class's own `cuda`, which calls its base's."""
    # `model.cuda` that is not called may be a module's own attribute.
    if event.call is None or event.name not in {".cuda", "torch.Tensor.cuda"}:
        return False
    # A module that overrides `cuda` calls `super().cuda()`, and only a GPU user calls it.
    return not context.function.endswith(".cuda") and gpu_hit(event)


RULE = Rule(
    id="TPU301",
    name="cuda-call",
    severity=Severity.ERROR,
    summary="`.cuda()` on a tensor or a module",
    why="`.cuda()` moves data to an NVIDIA GPU. A machine with a TPU has none: torch is built without CUDA "
    "there, and the call raises on import, when the model is built or when it is traced. `tpuport.port` "
    "moves weights to the TPU, and a tensor created in `forward` belongs on the device of its operands.",
    reason="`.cuda()` needs an NVIDIA GPU",
    remedy="remove it, or follow another tensor: `.to(x.device)`",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        scale = torch.full((4,), 2.0).cuda()
        return x * scale
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        scale = torch.full((4,), 2.0).to(x.device)
        return x * scale
"""),
    quiet=(
        # The code asks for a GPU first.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        if torch.cuda.is_available():
            x = x.cuda()
        return x * 2
"""),
    ),
    harm="cuda",
    events=(Use,),
    check=check,
    fix=Applicability.SAFE,
)
