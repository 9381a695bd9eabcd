"""TPU507: tensors that are not buffers."""

from tpuport.lint.abstract_values import Value, is_tensor
from tpuport.lint.events import ModuleClass
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import is_weight
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: ModuleClass, context: Context) -> list[Hit]:
    """`self.x = tensor` in `__init__`, neither a parameter nor a buffer."""
    return [
        Hit(
            f"self.{name} is neither a parameter nor a buffer: it stays on the host",
            node=node,
        )
        for name, node in event.assignments.items()
        if _is_plain_tensor(event.attributes.get(name))
    ]


def _is_plain_tensor(value: Value | None) -> bool:
    # torch registers parameters when they are assigned, buffers by `register_buffer`.
    return is_tensor(value) and not is_weight(value)


RULE = Rule(
    id="TPU507",
    name="plain-tensor-attribute",
    severity=Severity.WARNING,
    summary="a tensor stored in a plain attribute in `__init__`, neither parameter nor buffer",
    why="Only parameters and buffers move with a model, through `tpuport.port` as well as `.to()`. A tensor "
    "in a plain attribute stays on the host, and the first operation that combines it with a tensor on the "
    "device raises. If it is copied with `.to(x.device)`, it becomes a constant inside every program that "
    "uses it.",
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
        # A parameter, and a list of Python numbers.
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
