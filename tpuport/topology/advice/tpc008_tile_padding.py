"""TPC008: arrays that tiles make much larger."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.hlo import HBM, Array, Instruction

# Of the device's memory. Less does not decide on what fits.
_SHARE: Final = 0.005
# Of the array's own bytes. Tiles of 8 x 128 cost most arrays a few percent.
_RATIO: Final = 1.25
# They hand on arrays that something else has made.
_NOT_ARRAYS: Final = frozenset(
    "tuple get-tuple-element bitcast while conditional call optimization-barrier constant after-all".split()
)


class _Group(NamedTuple):
    """Arrays that are reported together."""

    type: str
    is_argument: bool
    nbytes: int


def check(evidence: Evidence) -> Iterator[Hit]:
    """By shape: all arguments of it, or the largest temporary."""
    groups: dict[_Group, list[tuple[Instruction, Array]]] = defaultdict(list)
    for instruction in evidence.compiled.instructions:
        if _stores_results(evidence, instruction):
            is_argument = instruction.operation == "parameter"
            for array in filter(_is_padded, instruction.results):
                # The compiler chose another order of the dimensions for a product or a
                # convolution.
                if is_argument or not _fills_tiles(array):
                    group = _Group(str(array), is_argument, array.tiled_nbytes)
                    groups[group].append((instruction, array))
    for group, arrays in groups.items():
        instruction, array = arrays[0]
        # Temporaries of one shape need not be in memory together.
        count = len(arrays) if group.is_argument else 1
        wasted = (array.tiled_nbytes - array.nbytes) * count
        if wasted >= _SHARE * evidence.report.memory.capacity:
            yield _describe(evidence, instruction, array, count)


def _is_padded(array: Array) -> bool:
    return array.space == HBM and array.tiled_nbytes >= _RATIO * array.nbytes


def _fills_tiles(array: Array) -> bool:
    """Whether an array would fill tiles that lay over its last two dimensions."""
    # A tile has eight rows of 32 bits, and twice as many of 16.
    rows = 8 * max(1, 4 * array.size // max(array.nbytes, 1))
    # A vector is padded as a matrix of one row.
    *_, second, last = (1, 1, *array.dims)
    filled = -(-second // rows) * rows * -(-last // 128) * 128
    return filled < _RATIO * second * last


def _stores_results(evidence: Evidence, instruction: Instruction) -> bool:
    """Whether an instruction's results are its own, and in memory."""
    # The arguments of a loop's body are arrays of the computation around it.
    if instruction.operation == "parameter":
        return instruction.computation == evidence.compiled.entry
    is_other_name = (
        instruction.operation in _NOT_ARRAYS or instruction.operation.endswith("-done")
    )
    return not (is_other_name or instruction.is_fused)


def _describe(
    evidence: Evidence, instruction: Instruction, array: Array, count: int
) -> Hit:
    description, source = f"argument {instruction.op_name}", None
    if instruction.operation != "parameter" or not instruction.op_name:
        description, source = (
            f"temporary of {instruction.operation}",
            evidence.compiled.source(instruction),
        )
    wasted = (array.tiled_nbytes - array.nbytes) * count
    return Hit(
        f"{count_noun(count, 'array')} {array.dtype}{list(array.dims)}: tiles pad {format_bytes(array.nbytes)} to "
        f"{format_bytes(array.tiled_nbytes)}, which wastes {format_bytes(wasted)} ({description})",
        "make two dimensions fill tiles of 8 x 128 (16 x 128 in bfloat16): merge small dimensions into their "
        "neighbours (flatten), or choose sizes that are multiples of 8 and 128",
        wasted,
        source=source,
    )


RULE = AdviceRule(
    id="TPC008",
    name="tile-padding",
    summary="arrays that padding makes much larger in memory than their elements",
    why="""A TPU stores arrays in tiles of 8 x 128 32-bit elements (16 x 128 at 16 bits) over two of their dimensions.
The compiler picks two dimensions that fill the tiles, if there are any: [1 << 20, 3] costs a third more. If no
dimension is close to a multiple of 128, it cannot, and a 65 x 65 x 65 array takes up twice the memory and twice the
time to read.""",
    measured="""The bytes of arguments and temporaries including tile padding: at least 1.25 times the bytes of their
elements, with a difference of at least 0.5% of the device's memory. Temporaries whose last two dimensions fill tiles do
not count: their layout, such as images by channels for a convolution, is the compiler's choice, and cutting the images
into patches beforehand took up just as much memory.""",
    before="""class Total(nn.Module):
    def forward(self, volumes):
        return (volumes * volumes).sum()


volumes = torch.empty(3, 65, 65, 65, 65, device="meta")            # 204 MiB, padded to 446
compile_for(Total(), {"volumes": volumes}, topology="v6e:2x2", tp=4)""",
    after="""class Total(nn.Module):
    def forward(self, volumes):
        return (volumes * volumes).sum()


volumes = torch.empty(3, 65, 65, 65, 65, device="meta").flatten()  # which fills tiles
compile_for(Total(), {"volumes": volumes}, topology="v6e:2x2", tp=4)""",
    check=check,
)
