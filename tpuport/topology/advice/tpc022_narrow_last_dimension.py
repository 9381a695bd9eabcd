"""TPC022: arrays whose last dimension is a few elements."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.advice_rules import AdviceRule, Hit
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.timed_code import format_seconds, timed_lines
from tpuport.topology.hlo import Array
from tpuport.topology.timing import Span

_FEW: Final = 4
# Smaller arrays are a few tiles, whatever their shape is.
_LEAST_ELEMENTS: Final = 1 << 16


def check(evidence: Evidence) -> Iterator[Hit]:
    """A finding for each line."""
    for line in timed_lines(evidence, _narrow_array):
        yield Hit(
            f"arrays whose last dimension has {line.largest.dims[-1]} elements, such as {line.largest}, take "
            f"{format_seconds(evidence, line.seconds)}: they are padded, or copied into another layout and back",
            "keep features in one last dimension: take pairs from its two halves (x.chunk(2, -1), torch.cat), or put "
            "the small dimension before it (x.unflatten(-1, (2, -1)) instead of (-1, 2))",
            line.seconds,
            "seconds",
            source=line.source,
        )


def _narrow_array(span: Span) -> Array | None:
    for array in span.instruction.results:
        # A last dimension of one element is only another name for the array without it.
        if (
            len(array.dims) > 2
            and 1 < array.dims[-1] <= _FEW
            and array.size >= _LEAST_ELEMENTS
        ):
            return array
    return None


RULE = AdviceRule(
    id="TPC022",
    name="narrow-last-dimension",
    summary="arrays whose last dimension is two to four elements",
    why="""The last two dimensions of an array lie in tiles of 8 x 128. An array of pairs, [..., 64, 2], either fills
two of 128 columns, or the compiler puts another dimension there and copies the array into that layout and back. Rotary
embeddings of neighbouring features are written so; in front of attention tpuport turns them into matrix products, and
elsewhere they stay as they are written.""",
    measured="""The time of the instructions that compute arrays of at least 65,536 elements with a last dimension of
two to four, by the line that they come from, if all of them take at least 2% of a step, and the line 1%.""",
    before="""class Rotary(nn.Module):
    def forward(self, x, cos, sin):
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((-second, first), -1).flatten(-2)
        return (x.float() * cos + turned.float() * sin).to(x.dtype).transpose(1, 2)


inputs = {"x": torch.empty(1, 8192, 24, 128, device="meta", dtype=torch.bfloat16)}
inputs |= {name: torch.empty(8192, 1, 128, device="meta") for name in ("cos", "sin")}
compile_for(Rotary(), inputs, topology="v6e:1x1")""",
    after="""class Rotary(nn.Module):
    def forward(self, x, cos, sin):
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return (x.float() * cos + turned.float() * sin).to(x.dtype).transpose(1, 2)


inputs = {"x": torch.empty(1, 8192, 24, 128, device="meta", dtype=torch.bfloat16)}
inputs |= {name: torch.empty(8192, 1, 128, device="meta") for name in ("cos", "sin")}
compile_for(Rotary(), inputs, topology="v6e:1x1")""",
    check=check,
)
