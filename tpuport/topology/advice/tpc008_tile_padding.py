"""TPC008: arrays that tiles make much larger."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.origins import argument_name
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several, size
from tpuport.topology.hlo import HBM, Array, Instruction

# Of the device's memory: what is less does not decide on what fits.
_SHARE: Final = 0.005
# Of the array's own bytes: tiles of 8 x 128 cost most arrays a few percent.
_RATIO: Final = 1.25
# They hand on arrays that something else has made.
_NO_ARRAY: Final = frozenset(
    "tuple get-tuple-element bitcast while conditional call optimization-barrier constant after-all".split()
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """By shape: all arguments of it, or the largest temporary."""
    found: Counter[tuple[str, bool, int]] = Counter()
    first: dict[tuple[str, bool, int], tuple[Instruction, Array]] = {}
    for one in evidence.instructions:
        if not _makes(evidence, one):
            continue
        is_argument = one.operation == "parameter"
        for array in one.results:
            if array.space != HBM or array.tiled_nbytes < _RATIO * array.nbytes:
                continue
            if not is_argument and _fills_tiles(array):
                continue  # in another order of its dimensions, which the compiler chose for a product or convolution
            key = (str(array), is_argument, array.tiled_nbytes)
            # Temporaries of one shape need not be there together.
            found[key] = found[key] + 1 if is_argument else 1
            first.setdefault(key, (one, array))
    for key, count in found.items():
        one, array = first[key]
        wasted = (array.tiled_nbytes - array.nbytes) * count
        if wasted >= _SHARE * evidence.report.memory.capacity:
            yield _hit(evidence, one, array, count, wasted)


def _fills_tiles(array: Array) -> bool:
    """Whether an array would fill tiles if they lay over its last two dimensions."""
    rows = 8 * max(1, 4 * array.size // max(array.nbytes, 1))
    *_, second, last = (1, 1, *array.dims)
    filled = -(-second // rows) * rows * -(-last // 128) * 128
    return filled < _RATIO * second * last


def _makes(evidence: Evidence, one: Instruction) -> bool:
    """Whether an instruction's results are kept in memory, and are its own."""
    if evidence.program is None or one.is_fused or one.operation.endswith("-done"):
        return False
    is_inner = one.operation == "parameter" and one.computation != evidence.program.entry
    return not is_inner and one.operation not in _NO_ARRAY


def _hit(evidence: Evidence, one: Instruction, array: Array, count: int, wasted: int) -> Hit:
    name = argument_name(one) if one.operation == "parameter" else ""
    what = f"argument {name}" if name else f"temporary of {one.operation}"
    return Hit(
        f"{several(count, 'array')} {array.dtype}{list(array.dims)}: tiles make {size(array.tiled_nbytes)} out of "
        f"{size(array.nbytes)}, {size(wasted)} for nothing ({what})",
        "let two dimensions fill tiles of 8 x 128 (16 x 128 in bfloat16): fold small ones into their neighbours "
        "(flatten), or take sizes that are multiples of 8 and 128",
        wasted,
        source=None if name or evidence.program is None else evidence.program.source(one),
    )


RULE = Rule(
    id="TPC008",
    name="tile-padding",
    summary="arrays that are much larger in memory than their elements",
    why="""A TPU keeps arrays in tiles of 8 x 128 elements of 32 bits (16 x 128 of 16 bits) over two of their
dimensions. The compiler chooses two that fill them, where there are such: [1 << 20, 3] costs a third. Where no
dimension is near a multiple of 128 it cannot, and an array of 65 x 65 x 65 takes twice the room, and twice the time
to read.""",
    measured="""Bytes of arguments and of temporaries as tiles pad them, at least 1.25 times their elements, where
the difference is 0.5% of the device's memory or more. A temporary whose last two dimensions fill tiles is left out: the
order in which the compiler keeps it, such as images by channels for a convolution, is its own choice, and images that
are cut into patches beforehand took as much room.""",
    before="""volumes = torch.zeros(3, 65, 65, 65, 65)            # 204 MiB, of which tiles make 446""",
    after="""volumes = torch.zeros(3, 65, 65, 65, 65).flatten()  # tiles fill it""",
    check=check,
)
