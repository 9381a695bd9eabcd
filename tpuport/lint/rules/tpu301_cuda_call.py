"""TPU301: `.cuda()`."""

from tpuport.lint.events import Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import gpu_hit
from tpuport.lint.rules.rule import Answer, Context, Example, Rule


def check(event: Use, context: Context) -> Answer:
    """The method of a tensor or a module; not in a class's own `cuda`, which calls its
    base's.
    """
    # `model.cuda` that is not called may be a module's own attribute.
    if event.call is None or event.name not in {".cuda", "torch.Tensor.cuda"}:
        return False
    # In traced code it means the device of the program.
    if event.traced and not event.in_init:
        return False
    # A module that overrides `cuda` calls `super().cuda()`, and only a GPU user calls
    # it.
    return not context.function.endswith(".cuda") and gpu_hit(event)


RULE = Rule(
    id="TPU301",
    name="cuda-call",
    severity=Severity.ERROR,
    summary="`.cuda()` on a tensor or a module",
    why="`.cuda()` moves data to an NVIDIA GPU. A machine with a TPU has none: torch is built without CUDA "
    "there, and the call raises on import, or when the model is built. `tpuport.port` moves weights to the TPU. In "
    'traced code it means the device that the program runs on, as `.to("cuda")` does, and does no harm. '
    "`with tpuport.gpu_shim():` lets the rest be imported and built as it is.",
    reason="`.cuda()` needs an NVIDIA GPU",
    remedy="remove it, or follow another tensor: `.to(x.device)`",
    bad=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0).cuda())

    def forward(self, x):
        return x * self.scale
"""),
    good=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        return x * self.scale
"""),
    quiet=(
        # What is on the device stays there, and what traced code has made on the host
        # goes there.
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer.cuda()(x.cuda()) * torch.full((4,), 2.0).cuda()
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
    events=(Use,),
    check=check,
    fix=Applicability.UNSAFE,
)
