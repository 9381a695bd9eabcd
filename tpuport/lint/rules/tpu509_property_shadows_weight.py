"""TPU509: properties that shadow weights."""

from typing import Final

from tpuport.lint.abstract_values import Instance, Layer, Tensor
from tpuport.lint.events import ModuleClass
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import class_facts, is_weight
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

# torch's layers that register a weight.
_WEIGHTED_LAYERS: Final = tuple(
    "Linear Conv Embedding LayerNorm RMSNorm GroupNorm BatchNorm InstanceNorm Bilinear".split()
)


def check(event: ModuleClass, context: Context) -> list[Hit]:
    """A property with the name of a parameter, buffer or submodule that the class or a
    base registers.
    """
    return [
        Hit(
            f"{name} is a registered weight as well, which the property hides",
            node=method.node,
        )
        for name, method in event.info.methods.items()
        if method.is_a("property", "cached_property") and _is_registered(event, name)
    ]


def _is_registered(event: ModuleClass, name: str) -> bool:
    value = event.attributes.get(name)
    if isinstance(value, Tensor):
        return is_weight(value)
    # A submodule is looked up by `getattr` too.
    if isinstance(value, Layer | Instance):
        return True
    # What a layer of torch registers is not in the linted code.
    bases = [
        base.rpartition(".")[2]
        for base in class_facts(event.info).get("external_bases", ())
    ]
    return name in {"weight", "bias"} and any(
        base.startswith(_WEIGHTED_LAYERS) for base in bases
    )


RULE = Rule(
    id="TPU509",
    name="property-shadows-weight",
    severity=Severity.ERROR,
    summary="a property with the name of a parameter, buffer or submodule",
    why="A property of the class takes precedence over what is registered under the same name. The weight is "
    "still in the state dict, but can no longer be looked up: `get_parameter` and `functional_call` find the "
    "property, so the weight cannot be moved to the device or replaced by the traced one.",
    reason="the property hides the weight of the same name, which can then be neither moved nor traced",
    remedy="give the property another name",
    bad=Example("""
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class Model(Scaled):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    @property
    def weight(self):
        return self.scale * 2

    def forward(self, x):
        return x * self.weight
"""),
    good=Example("""
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class Model(Scaled):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    @property
    def scaled_weight(self):
        return self.scale * 2

    def forward(self, x):
        return x * self.scaled_weight
"""),
    quiet=(
        # Nothing is registered as `weight`.
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    @property
    def weight(self):
        return self.scale * 2

    def forward(self, x):
        return x * self.weight
"""),
    ),
    events=(ModuleClass,),
    check=check,
)
