"""TPC008: arrays that tiles make much larger."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes, format_count
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
    groups: dict[_Group, list[tuple[Instruction, Array]]] = {}
    for instruction in evidence.compiled.instructions:
        if _stores_results(evidence, instruction):
            is_argument = instruction.operation == "parameter"
            for array in filter(_is_padded, instruction.results):
                # The compiler chose another order of the dimensions for a product or a convolution.
                if is_argument or not _fills_tiles(array):
                    group = _Group(str(array), is_argument, array.tiled_nbytes)
                    groups.setdefault(group, []).append((instruction, array))
    for group, arrays in groups.items():
        # Temporaries of one shape need not be in memory together.
        count = len(arrays) if group.is_argument else 1
        instruction, array = arrays[0]
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
    if instruction.is_fused or instruction.operation in _NOT_ARRAYS:
        return False
    if instruction.operation == "parameter":
        return instruction.computation == evidence.compiled.entry
    return not instruction.operation.endswith("-done")


def _describe(evidence: Evidence, instruction: Instruction, array: Array, count: int) -> Hit:
    description, source = f"argument {instruction.op_name}", None
    if instruction.operation != "parameter" or not instruction.op_name:
        description, source = f"temporary of {instruction.operation}", evidence.compiled.source(instruction)
    wasted = (array.tiled_nbytes - array.nbytes) * count
    return Hit(
        f"{format_count(count, 'array')} {array.dtype}{list(array.dims)}: tiles make "
        f"{format_bytes(array.tiled_nbytes)} out of {format_bytes(array.nbytes)}, {format_bytes(wasted)} for nothing "
        f"({description})",
        "let two dimensions fill tiles of 8 x 128 (16 x 128 in bfloat16): fold small ones into their neighbours "
        "(flatten), or take sizes that are multiples of 8 and 128",
        wasted,
        source=source,
    )


RULE = AdviceRule(
    id="TPC008",
    name="tile-padding",
    summary="arrays that are much larger in memory than their elements",
    why="""A TPU keeps arrays in tiles of 8 x 128 elements of 32 bits (16 x 128 of 16 bits) over two of their
dimensions. The compiler chooses two dimensions that fill them, if there are such: [1 << 20, 3] costs a third. If no
dimension is near a multiple of 128 it cannot, and an array of 65 x 65 x 65 takes twice the room, and twice the time to
read.""",
    measured="""Bytes of arguments and of temporaries with the padding of their tiles, at least 1.25 times their
elements, if the difference is 0.5% of the device's memory or more. A temporary whose last two dimensions fill tiles is
left out: the order in which the compiler keeps it, such as images by channels for a convolution, is its own choice, and
images that are cut into patches beforehand took as much room.""",
    before="""class Total(nn.Module):
    def forward(self, volumes):
        return (volumes * volumes).sum()


volumes = torch.empty(3, 65, 65, 65, 65, device="meta")            # 204 MiB, of which tiles make 446
compile_for(Total(), {"volumes": volumes}, topology="v6e:2x2", tp=4)""",
    after="""class Total(nn.Module):
    def forward(self, volumes):
        return (volumes * volumes).sum()


volumes = torch.empty(3, 65, 65, 65, 65, device="meta").flatten()  # which fills tiles
compile_for(Total(), {"volumes": volumes}, topology="v6e:2x2", tp=4)""",
    check=check,
)
