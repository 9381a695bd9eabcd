"""TPU601: `inference_mode`."""

from typing import Final

from tpuport.lint.events import FunctionEntry, Use
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_NAME: Final = "torch.inference_mode"


def check(event: FunctionEntry | Use, context: Context) -> Answer:
    """The context manager inside traced code, and the decorator of a traced
    function.
    """
    if isinstance(event, Use):
        return event.name == _NAME and event.call is not None and event.traced
    # A decorator takes effect when the function is entered, so the finding is on the
    # decorator.
    decorators = event.info.decorators
    return _NAME in decorators and Hit(
        node=event.info.node.decorator_list[decorators.index(_NAME)]
    )


RULE = Rule(
    id="TPU601",
    name="inference-mode",
    severity=Severity.ERROR,
    summary="`torch.inference_mode` in traced code",
    why="In inference mode torch skips the layer of its dispatcher that decomposes operators into simpler "
    "ones, and torchax is asked for operators that it does not have: `Operator with name aten::chunk has no "
    "lowering`. Under `jax.jit` gradients are not computed unless they are requested, so there is nothing to "
    "save.",
    reason="in inference mode operators reach torchax undecomposed, and many have no lowering",
    remedy="use `torch.no_grad()`, or nothing: under `jax.jit` no gradient is computed unless it is "
    "requested",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        with torch.inference_mode():
            first, second = x.chunk(2, -1)
            return first * second
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            first, second = x.chunk(2, -1)
            return first * second
"""),
    quiet=(
        # Around the compiled call, not inside it.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x * 2


@torch.inference_mode()
def main(model, x):
    return model(x)
"""),
    ),
    events=(
        FunctionEntry,
        Use,
    ),
    check=check,
    fix=Applicability.SAFE,
)
