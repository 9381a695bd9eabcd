"""FLOPs of loops: the compiler counts a loop's body once."""

import functools
import math
import re
from typing import Final, NamedTuple

from tpuport.topology.hlo.kernel_costs import estimated, kernel_flops
from tpuport.topology.hlo.program import Instruction, Program

# What the compiler counts as one for each number of the result: everything elementwise but transcendentals.
_ELEMENTWISE: Final = {
    "abs", "add", "and", "ceil", "clamp", "clz", "compare", "convert", "divide", "floor", "maximum", "minimum",
    "multiply", "negate", "not", "or", "popcnt", "remainder", "round-nearest-afz", "round-nearest-even", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "subtract", "xor", "is-finite",
    "all-reduce", "all-reduce-start", "reduce-scatter",
}  # fmt: skip
_LABELS: Final = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW: Final = re.compile(r"\bwindow=\{([^}]*)\}")
_CONTRACTED: Final = re.compile(r"\blhs_contracting_dims=\{([\d,]*)\}")
_GROUPS: Final = re.compile(r"\bbatch_group_count=(\d+)")
_PRECISION: Final = re.compile(r"\boperand_precision=\{(\w+),(\w+)\}")
_INT8: Final = {"s2", "s4", "s8", "u2", "u4", "u8"}
_FP8: Final = ("f8", "f4")
# A float32 number is the sum of three of bfloat16; these are the products of parts that are not left out.
_PASSES: Final = {"high": 3, "highest": 6}


class OtherRateFlops(NamedTuple):
    """FLOPs that do not run at the rate of bfloat16.

    Attributes:
        int8, fp8: of products in which both operands are integers, or floating-point numbers, of at most 8 bits.
        passes: that float32 products take beyond their own FLOPs: the matrix unit multiplies bfloat16, once at default
            precision and three or six times where the program asks for "high" or "highest".
    """

    int8: float
    fp8: float
    passes: float


def count_other_rate_flops(program: Program) -> OtherRateFlops:
    """Of a step on one device; inside of kernels nothing is known of dtypes."""
    return OtherRateFlops(
        *(program.total(functools.partial(_at_rate, program, which)) for which in OtherRateFlops._fields)
    )


def _at_rate(program: Program, which: str, instruction: Instruction) -> float:
    if instruction.operation not in ("convolution", "dot"):
        return 0.0
    kinds = {one.arrays[0].dtype for one in program.operands(instruction)[:2]}
    if which != "passes":
        fits = all(kind in _INT8 if which == "int8" else kind.startswith(_FP8) for kind in kinds)
        return 2.0 * _products(program, instruction) if fits else 0.0
    precision = _PRECISION.search(instruction.attributes)
    if precision is None or kinds != {"f32"}:
        return 0.0
    return (_PASSES.get(max(precision.groups()), 1) - 1) * 2.0 * _products(program, instruction)


def count_flops(program: Program, compiler_flops: float) -> float:
    """FLOPs of a step on one device: the compiler's count, with each loop's body as often as it runs.

    Kernels have what was counted of them, where that was; the compiler has what they say themselves.

    Args:
        program: the compiled one.
        compiler_flops: "flops" of `jax.stages.Compiled.cost_analysis`, which has the bodies of loops once.
    """
    if not program.kernel_costs and all(one.rounds == 1 for one in program.instructions):
        return float(compiler_flops)
    cost, stated = functools.partial(counted, program), functools.partial(counted, program, stated=True)
    return float(compiler_flops) + program.total(cost) - program.total(stated, loops=False)


def count_product_flops(program: Program) -> float:
    """FLOPs of a step on one device in matrix products, convolutions and kernels, without elementwise work.

    The product of a matrix and a vector is elementwise work too where the compiler makes it so.
    """
    return program.total(functools.partial(_product, program))


def _product(program: Program, instruction: Instruction) -> float:
    if instruction.operation in ("convolution", "dot"):
        return 2.0 * _products(program, instruction)
    return kernel_flops(program, instruction)


def counted(program: Program, instruction: Instruction, stated: bool = False) -> float:
    """FLOPs of one execution, as the compiler counts them; 0 for what calls the computation that has them.

    Args:
        stated: whether kernels have what they say themselves, as the compiler has it, and not what was counted of them.
    """
    kind = instruction.operation
    if kind in _ELEMENTWISE:
        return float(sum(made.size for made in instruction.results))
    if kind in ("convolution", "dot"):
        return 2.0 * _products(program, instruction)
    if kind == "reduce":
        given = program.operands(instruction)
        return (
            float(sum(made.size for one in given for made in one.arrays) / 2)
            if len(given) > 2
            else _sums(given)
        )
    return (estimated(instruction) or {}).get("flops", 0.0) if stated else kernel_flops(program, instruction)


def _sums(given: list[Instruction]) -> float:
    return float(given[0].arrays[0].size) if given and given[0].arrays else 0.0


def _products(program: Program, instruction: Instruction) -> int:
    """Multiplications of a matrix product or a convolution."""
    operands = program.operands(instruction)
    left, right = (one.arrays[0].dims for one in operands[:2])
    out = instruction.arrays[0].dims
    if instruction.operation == "dot":
        found = _CONTRACTED.search(instruction.attributes)
        return math.prod(out) * math.prod(
            left[int(one)] for one in (found[1] if found else "").split(",") if one
        )
    labels = _LABELS.search(instruction.attributes)
    if labels is None:
        return 0
    window, groups = _WINDOW.search(instruction.attributes), _GROUPS.search(instruction.attributes)
    products = out[labels[3].index("f")] * left[labels[1].index("b")] * right[labels[2].index("i")]
    for place in range(len(labels[1]) - 2):
        sizes = (
            dims[label.index(str(place))]
            for dims, label in zip((left, right, out), labels.groups(), strict=True)
        )
        products *= _pairs(*sizes, window[1] if window else "", place)
    return products // (int(groups[1]) if groups else 1)


@functools.lru_cache(maxsize=4096)
def _pairs(given: int, kernel: int, out: int, window: str, place: int) -> int:
    """Pairs of a place in the result and one in the kernel that meet a number, along one dimension."""
    fields = dict(one.split("=") for one in window.split())

    def field(name: str, default: int) -> int:
        return int(fields[name].split("x")[place]) if name in fields else default

    stride, dilated, spread = field("stride", 1), field("lhs_dilate", 1), field("rhs_dilate", 1)
    padding = fields["pad"].split("x")[place].split("_") if "pad" in fields else ("0", "0")
    last = (given - 1) * dilated
    return sum(_hits(out, stride, tap * spread - int(padding[0]), dilated, last) for tap in range(kernel))


def _hits(out: int, stride: int, start: int, dilated: int, last: int) -> int:
    """How many of start, start + stride, ... (`out` of them) are multiples of `dilated` from 0 to `last`."""
    first = max(0, -(start // stride))  # the first that is not negative
    end = min(out, (last - start) // stride + 1)
    common = math.gcd(stride, dilated)
    if end <= first or start % common:
        return 0
    period = dilated // common
    offset = (-start // common) * pow(stride // common, -1, period) % period if period > 1 else 0
    begin = first + (offset - first) % period
    return max(0, -(-(end - begin) // period))
