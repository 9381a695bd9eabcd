"""TPU113: writes through a boolean mask that read it too."""

from tpuport.lint.abstract_values import Static, Tensor
from tpuport.lint.events import Subscript
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.matching import is_mask
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: Subscript, context: Context) -> Hit | None:
    """`x[mask] += v`, and a mask beside an index of integers; a plain `x[mask] = v` traces."""
    if not event.store or not any(is_mask(value) for value in event.indices):
        return None
    if event.operator is not None:
        return Hit(node=event.statement)
    beside = [value for value in event.indices if isinstance(value, Tensor) and not is_mask(value)]
    if beside and len(event.indices) > 1 and not any(isinstance(value, Static) for value in beside):
        return Hit(
            reason="a boolean mask beside an index of integers becomes a list of places, whose length is not known",
            remedy="write through the mask alone, with `torch.where`",
            node=event.statement,
            fix=Applicability.NONE,
        )
    return None


_INPUTS = "(torch.randn(2, 4), torch.tensor([[True, False, True, True], [False, True, True, False]]))"

RULE = Rule(
    id="TPU113",
    name="boolean-mask-write",
    severity=Severity.ERROR,
    summary="`x[mask] *= value`, and a mask beside an index of integers: `x[mask, index] = value`",
    why="An augmented assignment first reads `x[mask]`, whose length depends on values that do not exist "
    "while the"
    " program is traced, and ends with `NonConcreteBooleanIndexError`. A mask beside integers has to "
    "become a list of"
    " places for the same reason. A plain `x[mask] = value` traces: with tpuport enabled a number, a "
    "tensor that"
    " broadcasts and the values for the true elements alike.",
    reason="`x[mask]` is read before it is written, and its length is not known while tracing",
    remedy="choose instead of picking: `x = torch.where(mask, x * value, x)`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, mask):
        y = x.clone()
        y[mask] *= 2.0
        return y
""",
        _INPUTS,
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask, x * 2.0, x)
""",
        _INPUTS,
    ),
    quiet=(
        Example(
            """
class Model(nn.Module):
    def forward(self, x, mask):
        y = x.clone()
        y[mask] = 0.0
        return y
""",
            _INPUTS,
        ),
        Example(
            """
class Model(nn.Module):
    def forward(self, x, mask):
        y = x.clone()
        y[:, 1:] *= 2.0
        return y
""",
            _INPUTS,
        ),
    ),
    events=(Subscript,),
    check=check,
    fix=Applicability.SAFE,
)
