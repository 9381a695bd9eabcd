"""TPU403: complex numbers."""

from typing import Final

from tpuport.lint.events import Call
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import dtype_hits
from tpuport.lint.rules.rule import Answer, Context, Example, Rule

_CONSTRUCTORS: Final = frozenset(
    {"torch.polar", "torch.complex", "torch.view_as_complex"}
)


def check(event: Call, context: Context) -> Answer:
    """A complex tensor created in traced code."""
    # Casts to a complex dtype are rarer than the constructors, but cost the same.
    return event.name in _CONSTRUCTORS or dtype_hits(event, "complex64", "complex128")


RULE = Rule(
    id="TPU403",
    name="complex-rotary",
    severity=Severity.WARNING,
    summary="complex numbers in traced code: `torch.polar`, `torch.view_as_complex`",
    why="Rotary embeddings are often written as a product of complex numbers. This traces, but a TPU has no "
    "complex type: XLA keeps two float32 arrays for each tensor, never bfloat16; pairing up the last "
    "dimension copies data across lanes; and no Pallas kernel takes complex numbers. A real cosine and sine "
    "give the same numbers in any dtype.",
    reason="complex arrays are pairs of float32 on TPU: never bfloat16, and slow to pair up",
    remedy="rotate with a real cosine and sine: `x1 * cos - x2 * sin` and `x1 * sin + x2 * cos`",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, angle):
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        turned = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned).flatten(-2).type_as(x)
""",
        "(torch.randn(3, 8), torch.randn(3, 4))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, angle):
        real, imaginary = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1)
        return turned.flatten(-2).type_as(x)
""",
        "(torch.randn(3, 8), torch.randn(3, 4))",
    ),
    quiet=(
        # Asking for the dtype creates no complex tensor.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        return x if x.is_complex() else x * 2
"""),
    ),
    harm="complex",
    events=(Call,),
    check=check,
    fix=Applicability.UNSAFE,
)
