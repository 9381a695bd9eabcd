"""TPU507: tensors that are not buffers."""

from tpuport.lint.abstract_values import Value, is_tensor
from tpuport.lint.events import ModuleClass
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import is_weight
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: ModuleClass, context: Context) -> list[Hit]:
    """`self.x = tensor` in `__init__`, neither a parameter nor a buffer."""
    return [
        Hit(f"self.{name} is neither a parameter nor a buffer: it stays on the host", node=node)
        for name, node in event.assignments.items()
        if _is_plain_tensor(event.attributes.get(name))
    ]


def _is_plain_tensor(value: Value | None) -> bool:
    return is_tensor(value) and not is_weight(value)


RULE = Rule(
    id="TPU507",
    name="plain-tensor-attribute",
    severity=Severity.WARNING,
    summary="a tensor kept in a plain attribute in `__init__`, neither parameter nor buffer",
    why="What moves a model's tensors, `tpuport.port` as well as `.to()`, knows parameters and buffers. A "
    "plain attribute stays on the host, and the first operation that meets it and a tensor of the device "
    "raises. Where it is copied over with `.to(x.device)`, it becomes a constant inside the program, "
    "copied into each one.",
    reason="the tensor is neither a parameter nor a buffer: it stays on the host when the model is ported",
    remedy="`self.register_buffer(name, tensor, persistent=False)`",
    bad=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.full((4,), 2.0)

    def forward(self, x):
        return x * self.scale
"""),
    good=Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x):
        return x * self.scale
"""),
    quiet=(
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.rates = torch.linspace(0, 1, 4).tolist()

    def forward(self, x):
        return x * self.scale * self.rates[1]
"""),
    ),
    events=(ModuleClass,),
    check=check,
    fix=Applicability.UNSAFE,
)
