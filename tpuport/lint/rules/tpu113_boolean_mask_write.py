"""TPU113: writes through a boolean mask that read it too."""

from tpuport.lint.abstract_values import Value, is_traced
from tpuport.lint.events import Subscript
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import is_mask
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule


def check(event: Subscript, context: Context) -> Answer:
    """`x[mask] += v`, and a mask beside a list of positions; a plain `x[mask] = v`
    traces.
    """
    # A read is TPU101.
    if not event.store or not any(map(is_mask, event.indices)):
        return False
    # The finding is on the whole statement, which the fix replaces.
    if event.operator is not None:
        return Hit(node=event.statement)
    # Alone, a mask is a choice between old and new values, which has a known shape.
    if not any(map(_is_of_positions, event.indices)):
        return False
    return Hit(
        reason="a boolean mask beside an index of integers becomes a list of positions, whose length is not known",
        remedy="write through the mask alone, with `torch.where`",
        node=event.statement,
        fix=Applicability.NONE,
    )


def _is_of_positions(index: Value) -> bool:
    """Whether it is a traced tensor of several positions; beside a single one, which
    has no dimensions, a mask stays what it is.
    """
    is_single = index.ndim == 0 or (index.ndim, index.origin) == (-1, "element")
    return is_traced(index) and not is_mask(index) and not is_single


_INPUTS = "(torch.randn(2, 4), torch.tensor([[True, False, True, True], [False, True, True, False]]))"

RULE = Rule(
    id="TPU113",
    name="boolean-mask-write",
    severity=Severity.ERROR,
    summary="`x[mask] *= value`, and a mask beside a list of positions: `x[mask, positions] = value`",
    why="An augmented assignment first reads `x[mask]`, whose length depends on values that do not exist "
    "while the program is traced, and ends with `NonConcreteBooleanIndexError`. A mask beside integers would "
    "have to become a list of positions, whose length is unknown too. A plain `x[mask] = value` traces: with "
    "tpuport enabled, the value may be a number, a tensor that broadcasts, or the values of the selected "
    "elements.",
    reason="`x[mask]` is read before it is written, and its length is not known while tracing",
    remedy="choose instead of selecting: `x = torch.where(mask, x * value, x)`",
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
        # Nothing is read: `jnp.where` chooses between the old and the new value.
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
        # So it is in a row that a single position names.
        Example(
            """
class Model(nn.Module):
    def forward(self, x, mask, rows: torch.Tensor):
        y = x.clone()
        y[rows[0], mask] = 0.0
        y[x.sum(-1).argmax(), mask] = 1.0
        for row in rows:
            y[row, mask] = 2.0
        return y
""",
            "(torch.randn(2, 4), torch.tensor([True, False, True, True]), torch.tensor([1, 0]))",
        ),
        # A slice has a known length.
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
