"""TPU308: `torch.compile` and dynamo at module level."""

from typing import Final

from tpuport.lint.events import Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Context, Example, Rule

_COMPILERS: Final = frozenset({"torch.compile", "torch._dynamo.optimize"})


def check(event: Use, context: Context) -> bool:
    """A compiler of torch, called or used as a decorator under no condition."""
    if event.name not in _COMPILERS or event.checked:
        return False
    # A condition may well ask for the device; a `try` is there for the import beside
    # it.
    if event.guarded and not event.tried:
        return False
    is_applied = event.call is not None or event.decorator
    # A function of host code that compiles its argument is used for GPUs, and not
    # called here.
    return is_applied and (event.at_import or event.in_init or event.traced)


RULE = Rule(
    id="TPU308",
    name="torch-compile",
    severity=Severity.INFO,
    summary="`torch.compile` or dynamo at module level, in `__init__` or in traced code",
    why="A program has one compiler, and here it is XLA. Under `jax.jit` torch's compiler is bypassed: the code "
    "traces as if it were called directly, and what the compiler was given, such as a mode, has no effect. On host "
    "tensors it compiles for the host, as ever.",
    reason="torch's compiler is bypassed under `jax.jit`",
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
    harm="bypassed",
    events=(Use,),
    check=check,
    fix=Applicability.UNSAFE,
)
