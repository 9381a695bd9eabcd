"""TPU506: random numbers that a program would draw only once."""

from typing import Final

from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule

_MODULES: Final = ("random", "numpy.random")
# What these give is used later, and the names of its methods say nothing.
_CONSTRUCTORS: Final = frozenset(
    {
        "Random",
        "SystemRandom",
        "RandomState",
        "Generator",
        "default_rng",
        "SeedSequence",
    }
)
_SEEDS: Final = frozenset(
    f"{module}.{function}"
    for module in ("torch", "torch.random", "torch.default_generator")
    for function in (
        "manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state", "get_state", "set_state",
    )
)  # fmt: skip


def _is_draw(name: str) -> bool:
    module, _, function = name.rpartition(".")
    return module in _MODULES and function not in _CONSTRUCTORS


def check(event: Call, context: Context) -> bool:
    """A draw of Python or NumPy, or a seed or state of torch."""
    is_host_draw = event.receiver is None and _is_draw(event.name)
    return is_host_draw or event.name in _SEEDS


RULE = Rule(
    id="TPU506",
    name="unseeded-randomness",
    severity=Severity.WARNING,
    summary="random numbers of Python or NumPy, and seeds, in traced code: `random.random()`, `torch.manual_seed`",
    why="Python runs once for a program, while it is traced. A number that Python or NumPy draws is a constant of "
    "the program, the same in each call, and a seed is set in the first call only. torch's own samplers, such as "
    "`torch.randn_like` and `F.dropout`, are all right: their generator's state goes into each call of a compiled "
    "function, and `torch.manual_seed` before the call decides what they draw.",
    reason="it happens once, while the program is traced: each compiled call has the same numbers",
    remedy="draw with torch on the device, `torch.rand((), device=x.device)`, or outside of the compiled code, and "
    "seed before the call",
    bad=Example("""
import random


class Model(nn.Module):
    def forward(self, x):
        return x + random.random()
"""),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, noise):
        return x + noise
""",
        "(torch.randn(2, 4), torch.rand(()))",
    ),
    quiet=(
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.start = nn.Parameter(torch.randn(4))

    def forward(self, x):
        x = F.dropout(x + self.start, 0.1, self.training)
        return self.dropout(x) + 0 * torch.randn_like(x)
"""),
    ),
    harm="constant",
    events=(Call,),
    calls=lambda name: _is_draw(name) or name in _SEEDS,
    check=check,
)
