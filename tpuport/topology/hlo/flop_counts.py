"""FLOPs of a compiled program; the compiler itself counts the body of a loop once."""

import functools
import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo.array_types import Array, parse_numbers, search_group
from tpuport.topology.hlo.compiler_kernels import PRODUCTS, excess_shares
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.kernel_costs import kernel_flops, stated_flops
from tpuport.topology.hlo.program import Program
from tpuport.topology.kernels.kernel_calls import KernelCall

# The compiler counts one for each element of their results: all that is elementwise and
# not transcendental.
_ELEMENTWISE: Final = {
    "abs", "add", "and", "ceil", "clamp", "clz", "compare", "convert", "divide", "floor", "maximum", "minimum",
    "multiply", "negate", "not", "or", "popcnt", "remainder", "round-nearest-afz", "round-nearest-even", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "subtract", "xor", "is-finite",
    "all-reduce", "all-reduce-start", "reduce-scatter",
}  # fmt: skip
_LABELS: Final = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW: Final = re.compile(r"\bwindow=\{([^}]*)\}")
_CONTRACTED: Final = re.compile(r"\blhs_contracting_dims=\{([\d,]*)\}")
_BATCH_GROUPS: Final = re.compile(r"\bbatch_group_count=(\d+)")
_PRECISION: Final = re.compile(r"\boperand_precision=\{(\w+,\w+)\}")
# The first two letters of their names: those of fp8 have suffixes, "f8e4m3fn".
_INT8: Final = {"s2", "s4", "s8", "u2", "u4", "u8"}
_FP8: Final = {"f8", "f4"}
# A float32 number is the sum of three of bfloat16. A product of two has nine partial
# products, of which "high" and "highest" compute three and six.
_PASSES: Final = {"high": 3, "highest": 6}


class OtherRateFlops(NamedTuple):
    """FLOPs that do not run at the rate of bfloat16.

    Attributes:
        int8: of products in which both operands are integers of at most 8 bits.
        fp8: of products in which both operands are floating-point numbers of at most 8
            bits.
        passes: that float32 products take beyond their own FLOPs. The matrix unit
            multiplies bfloat16: once at default precision, and three or six times if
            the program asks for "high" or "highest".
    """

    int8: float
    fp8: float
    passes: float


def count_other_rate_flops(program: Program) -> OtherRateFlops:
    """FLOPs of a step on one device; kernels count as bfloat16, as nothing is known of
    the dtypes in them.
    """
    return OtherRateFlops(
        program.total(functools.partial(_narrow_flops, program, _INT8)),
        program.total(functools.partial(_narrow_flops, program, _FP8)),
        program.total(functools.partial(_pass_flops, program)),
    )


def _narrow_flops(
    program: Program, dtypes: set[str], instruction: Instruction
) -> float:
    """FLOPs of a product if both of its operands have one of these dtypes."""
    operand_dtypes = {dtype[:2] for dtype in _operand_dtypes(program, instruction)}
    if not operand_dtypes <= dtypes:
        return 0.0
    return _product_flops(program, instruction)


def _pass_flops(program: Program, instruction: Instruction) -> float:
    """FLOPs of a float32 product beyond those of its first pass."""
    if _operand_dtypes(program, instruction) != {"f32"}:
        return 0.0
    precisions = search_group(_PRECISION, instruction.attributes).split(",")
    passes = max(_PASSES.get(precision, 1) for precision in precisions)
    return (passes - 1) * _product_flops(program, instruction)


def _operand_dtypes(program: Program, product: Instruction) -> set[str]:
    """The dtypes of a product's operands; none of any other instruction."""
    if product.operation not in PRODUCTS:
        return set()
    return {operand.arrays[0].dtype for operand in program.operands(product)[:2]}


def count_flops(program: Program, compiler_flops: float) -> float:
    """FLOPs of a step on one device: the compiler's count, with each loop's body as
    often as it runs.

    Kernels have what was counted of them; the compiler has what they state themselves.

    Args:
        program: the compiled one.
        compiler_flops: "flops" of `jax.stages.Compiled.cost_analysis`, which has the
            bodies of loops once.
    """

    def compiler_count(instruction: Instruction) -> float:
        return instruction_flops(program, instruction) + stated_flops(instruction)

    def own_count(instruction: Instruction) -> float:
        own = instruction_flops(program, instruction) + kernel_flops(
            program, instruction
        )
        return own - _skipped_flops(program, instruction)

    # The compiler's total has more in it than its own count of instructions says, such
    # as transcendentals: only what loops and kernels add is replaced.
    missing = program.total(own_count) - program.total(
        compiler_count, counts_rounds=False
    )
    return float(compiler_flops) + missing


def count_product_flops(program: Program) -> float:
    """FLOPs of a step on one device in matrix products, convolutions and kernels,
    without elementwise work.

    The product of a matrix and a vector is elementwise work too if the compiler has
    made it so.
    """
    return program.total(
        lambda instruction: (
            _product_flops(program, instruction) + kernel_flops(program, instruction)
        )
    )


def count_expanded_flops(program: Program, calls: Sequence[KernelCall]) -> float:
    """FLOPs that a step does beyond what is needed because the compiler multiplies few
    rows by all groups.

    Such a product has the groups as a batch, [G, M, N], and no name.

    Args:
        program: the compiled one.
        calls: those that were traced, among them products by groups.
    """
    shares = excess_shares(calls)
    if not shares:
        return 0.0

    def excess_flops(instruction: Instruction) -> float:
        is_known = instruction.op_name or instruction.name in program.skipped_shares
        if instruction.operation not in PRODUCTS or is_known:
            return 0.0
        share = shares.get(instruction.arrays[0].dims, 0.0)
        return share * _written_flops(program, instruction)

    return program.total(excess_flops)


def executed_products(program: Program, instruction: Instruction) -> list[Instruction]:
    """The products and convolutions that one execution of an instruction computes, also
    those that it fuses.
    """
    inside = program.fused_computation(instruction)
    if inside is not None:
        return [
            product
            for fused in inside.instructions
            for product in executed_products(program, fused)
        ]
    if instruction.operation in PRODUCTS:
        return [instruction]
    return []


def product_flops_by_rate(
    program: Program, products: Sequence[Instruction]
) -> tuple[float, OtherRateFlops]:
    """FLOPs of one execution of each of some products, and of these what does not run
    at the rate of bfloat16.
    """
    return sum(
        _product_flops(program, product) for product in products
    ), OtherRateFlops(
        sum(_narrow_flops(program, _INT8, product) for product in products),
        sum(_narrow_flops(program, _FP8, product) for product in products),
        sum(_pass_flops(program, product) for product in products),
    )


def instruction_flops(program: Program, instruction: Instruction) -> float:
    """FLOPs of one execution, as the compiler counts them; 0 for kernels, and for what
    calls other computations.
    """
    operation = instruction.operation
    if operation in _ELEMENTWISE:
        return float(sum(array.size for array in instruction.results))
    if operation == "reduce":
        return _reduction_flops(program.operand_arrays(instruction))
    return _written_flops(program, instruction)


def _reduction_flops(operands: list[Array]) -> float:
    """One for each element. Of arrays that are reduced together, such as values and
    indices, half of all elements.
    """
    sizes = [array.size for array in operands]
    if len(operands) > 2:
        return sum(sizes) / 2
    return float(sum(sizes[:1]))


def _product_flops(program: Program, instruction: Instruction) -> float:
    """Those of a matrix product or a convolution that it does not skip; 0 for all other
    instructions.
    """
    written = _written_flops(program, instruction)
    return written - _skipped_flops(program, instruction)


def _skipped_flops(program: Program, instruction: Instruction) -> float:
    share = program.skipped_shares.get(instruction.name, 0.0)
    return share and share * _written_flops(program, instruction)


def _written_flops(program: Program, instruction: Instruction) -> float:
    """Two for each multiplication of a matrix product or a convolution; 0 for all other
    instructions.
    """
    if instruction.operation not in PRODUCTS:
        return 0.0
    left, right, *_ = (
        operand.arrays[0].dims for operand in program.operands(instruction)
    )
    out = instruction.arrays[0].dims
    if instruction.operation == "convolution":
        return 2.0 * _convolution_products(instruction.attributes, left, right, out)
    dims = parse_numbers(search_group(_CONTRACTED, instruction.attributes))
    return 2.0 * math.prod(out) * math.prod(left[dim] for dim in dims)


def _convolution_products(
    attributes: str, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]
) -> int:
    """Multiplications of a convolution. The compiler for TPUs writes matrix products as
    convolutions too.
    """
    labels = _LABELS.search(attributes)
    if labels is None:
        return 0
    of_left, of_right, of_out = labels.groups()
    window = search_group(_WINDOW, attributes)
    products = (
        out[of_out.index("f")] * left[of_left.index("b")] * right[of_right.index("i")]
    )
    for dim in range(len(of_left) - 2):
        label = str(dim)
        products *= _count_meeting_pairs(
            left[of_left.index(label)], right[of_right.index(label)], out[of_out.index(label)],
            window, dim,
        )  # fmt: skip
    return products // int(search_group(_BATCH_GROUPS, attributes, "1"))


@functools.lru_cache(maxsize=4096)
def _count_meeting_pairs(
    length: int, kernel: int, out: int, window: str, dim: int
) -> int:
    """Pairs of a position of the result and one of the kernel that meet an element,
    along one dimension.

    The others meet padding, or the zeros that a transposed convolution puts between
    elements.
    """
    # "size=1x3 stride=1x2 pad=0_0x1_1" has what belongs to each dimension in order.
    fields = {
        name: value.split("x")[dim]
        for name, value in re.findall(r"(\w+)=(\S+)", window)
    }
    stride, kernel_dilation = (
        int(fields.get("stride", 1)),
        int(fields.get("rhs_dilate", 1)),
    )
    dilation = int(fields.get("lhs_dilate", 1))
    padding = int(fields.get("pad", "0_0").split("_")[0])
    last = (length - 1) * dilation
    starts = [tap * kernel_dilation - padding for tap in range(kernel)]
    return sum(_count_hits(out, stride, start, dilation, last) for start in starts)


def _count_hits(out: int, stride: int, start: int, dilation: int, last: int) -> int:
    """How many of start, start + stride, ... (`out` of them) are multiples of
    `dilation` from 0 to `last`.
    """
    first = max(0, -(start // stride))  # the first that is not negative
    end = min(out, (last - start) // stride + 1)
    common = math.gcd(stride, dilation)
    if end <= first or start % common:
        return 0
    period = dilation // common
    # The solutions of start + stride * n = 0 modulo the dilation are one residue class
    # modulo the period.
    offset = (-start // common) * pow(stride // common, -1, period) % period
    begin = first + (offset - first) % period
    return max(0, math.ceil((end - begin) / period))
