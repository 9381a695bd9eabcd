"""TPU301: `.cuda()`."""

from tpuport.lint.abstract_values import Tensor
from tpuport.lint.events import Call, Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule


def check(event: Use | Call, context: Context) -> Answer:
    """The method of a tensor or a module; not in a class's own `cuda`, which calls its base's."""
    if isinstance(event, Call):
        return _check_traced(event)
    # `model.cuda` that is not called may be a module's own attribute.
    if event.call is None or event.name not in {".cuda", "torch.Tensor.cuda"}:
        return False
    # In traced code it depends on the tensor, which a Call has.
    if event.traced and not event.in_init:
        return False
    # A module that overrides `cuda` calls `super().cuda()`, and only a GPU user calls it.
    return not context.function.endswith(".cuda") and gpu_hit(event)


def _check_traced(event: Call) -> Answer:
    """A tensor of the host; what is on the device, tensors and modules, stays there."""
    if event.name != "cuda" or not isinstance(event.receiver, Tensor) or not event.receiver.host:
        return False
    return Hit(severity=Severity.ERROR if event.certain else Severity.WARNING)


RULE = Rule(
    id="TPU301",
    name="cuda-call",
    severity=Severity.ERROR,
    summary="`.cuda()` on a tensor or a module",
    why="`.cuda()` moves data to an NVIDIA GPU. A machine with a TPU has none: torch is built without CUDA "
    "there, and the call raises on import, when the model is built, or when a tensor that traced code has just "
    "created on the host is moved. `tpuport.port` moves weights to the TPU, and a tensor created in `forward` belongs "
    "on the device of its operands. A traced tensor or a ported module is on the device already, and stays there.",
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
        # What is on the device stays there.
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer.cuda()(x.cuda())
"""),
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
    events=(Use, Call),
    check=check,
    fix=Applicability.SAFE,
)
