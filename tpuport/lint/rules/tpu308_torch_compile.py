"""TPU308: `torch.compile` and dynamo at module level."""

from typing import Final

from tpuport.lint.events import Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Context, Example, Rule

_COMPILERS: Final = frozenset({"torch.compile", "torch._dynamo.optimize"})


def check(event: Use, context: Context) -> bool:
    """A compiler of torch, called or used as a decorator under no condition."""
    # A condition may well ask for the device.
    if event.name not in _COMPILERS or event.checked or event.guarded:
        return False
    is_applied = event.call is not None or event.decorator
    # A function of host code that compiles its argument is used for GPUs, and not called here.
    return is_applied and (event.at_import or event.in_init or event.traced)


RULE = Rule(
    id="TPU308",
    name="torch-compile",
    severity=Severity.WARNING,
    summary="`torch.compile` or dynamo at module level, in `__init__` or in traced code",
    why="A program has one compiler, and here it is XLA. Under `jax.jit` torch's compiler is bypassed, so "
    "the code traces. Called outside it, on host tensors, torch's compiler inspects every device type that "
    "is registered with torch, torchax's included, and raises `InternalTorchDynamoError`.",
    reason="torch's compiler is of no use under `jax.jit`, and fails outside it once torchax is imported",
    remedy="call the function directly; compile the whole model with `tpuport.compile`",
    bad=Example("""
@torch.compile
def scaled(x):
    return x * 2 + 1


class Model(nn.Module):
    def forward(self, x):
        return scaled(x)
"""),
    good=Example("""
def scaled(x):
    return x * 2 + 1


class Model(nn.Module):
    def forward(self, x):
        return scaled(x)
"""),
    quiet=(
        # A function that only host code calls; and `is_compiling`, which only asks.
        Example("""
def accelerate(model):
    return torch.compile(model)


class Model(nn.Module):
    def forward(self, x):
        return x * 2 if not torch.compiler.is_compiling() else x * 2
"""),
    ),
    harm="dynamo",
    events=(Use,),
    check=check,
    fix=Applicability.SAFE,
)
