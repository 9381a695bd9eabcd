"""Kernels that the compiler for TPUs makes by itself, of products by groups and of
softmax: how much they do.

Their bodies are text in the program (MLIR), with a grid and windows as Pallas' kernels
have. The bodies of Pallas' kernels are bytecode, and are counted where they are traced.
"""

import base64
import collections
import functools
import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo.array_types import Array, parse_numbers, search_group
from tpuport.topology.hlo.instructions import Instruction
from tpuport.topology.hlo.program import Program
from tpuport.topology.kernels.kernel_calls import RAGGED, KernelCall, KernelCost

_BODY: Final = re.compile(r'"body":"(bW9kdWxl[A-Za-z0-9+/]*=*)"')  # "module" in base64
_TILING: Final = re.compile(r'\bragged_dot_tiling="(\d+),(\d+),(\d+)"')
_BOUNDS: Final = re.compile(r"\biteration_bounds = array<i64: ([-\d, ]+)>")
_PREFETCHED: Final = re.compile(r"\bscalar_prefetch = (\d+)")
_WINDOW: Final = re.compile(
    r"\btransform_indices = @([\w.-]+), window_bounds = array<i64: ([\d, ]+)>"
)
_FUNCTION: Final = re.compile(r"^  func\.func (?:private )?@([\w.-]+)\(", re.MULTILINE)
_NAME: Final = re.compile(r"%[\w.]+")
_ARGUMENT: Final = re.compile(r"%arg(\d+)")
_MATMUL: Final = re.compile(r"tpu\.matmul.*dot_dimension_numbers<\[([\d, ]*)\]")
_VECTOR: Final = re.compile(r"\bvector<((?:\d+x)*\d+)x")
_ELEMENTWISE: Final = re.compile(
    r"arith\.(?:add|sub|mul|div|maximum|minimum)f |vector\.multi_reduction "
)
# Of a product, in the compiler's configuration of the fusion that it is in.
_SKIPS_GROUPS: Final = '"is_ragged_dot":true'
PRODUCTS: Final = ("convolution", "dot")
_TOP_LEVEL_INDENT: Final = 4  # of what runs at every step, in no branch and no loop


class _WindowIndex(NamedTuple):
    """The index of a window along one dimension.

    Attributes:
        axes: of the grid, those that it varies with.
        is_axis: whether it is the step along an axis of the grid, and not computed from
            steps.
    """

    axes: frozenset[int]
    is_axis: bool


class _Window(NamedTuple):
    """The part of an operand or a result that a step sees: its extents, and its index
    along each dimension.
    """

    extents: tuple[int, ...]
    indices: tuple[_WindowIndex, ...]


class _StepWork(NamedTuple):
    """FLOPs of one step of the grid, and whether some are in a branch or a loop."""

    flops: float
    is_nested: bool


class _Body(NamedTuple):
    """What a body's text says.

    Attributes:
        grid: the number of steps along each axis, 1 if it is known only at run time.
        is_known: whether the numbers of steps are known.
        prefetched: how many operands have no window.
        windows: of the other operands, then of the results.
        work: of a step.
    """

    grid: tuple[int, ...]
    is_known: bool
    prefetched: int
    windows: tuple[_Window, ...]
    work: _StepWork

    @property
    def steps(self) -> int:
        return math.prod(self.grid)


def count_compiler_kernel(
    program: Program, instruction: Instruction, calls: Sequence[KernelCall]
) -> KernelCost | None:
    """What one execution of a kernel does; None for a kernel that the compiler has not
    made.

    A kernel that multiplies rows by the matrix of their group goes through tiles of
    rows, once for each group with a row in the tile, and skips rows in no group. How
    many that are depends on data. Here rows are spread over all groups evenly and at
    random (see `kernel_calls.ragged_call`). All other kernels do the same at each step
    of their grid.

    Args:
        program: the compiled one.
        instruction: a kernel.
        calls: those that were traced, among them products by groups.
    """
    body = _BODY.search(instruction.attributes)
    if body is None:
        return None
    operands = program.operand_arrays(instruction)
    tiling = _TILING.search(instruction.attributes)
    if tiling is None:
        return _grid_cost(
            _read_body(base64.b64decode(body[1]).decode()),
            operands,
            instruction.results,
        )
    tile = _Tile(*map(int, tiling.groups()))
    for product in _ragged_products(calls):
        if product.is_computed_from(operands):
            return _ragged_cost(product, operands, instruction.results, tile)
    return None


def find_skipped_shares(
    program: Program, calls: Sequence[KernelCall]
) -> dict[str, float]:
    """By the name of a product of all rows with all groups, the share of its FLOPs that
    it leaves out: the compiler has it skip parts whose rows are in other groups.

    The compiler for TPUs writes products by groups so since libtpu 0.0.52.
    """
    shares = excess_shares(calls)
    skipped: dict[str, float] = {}
    if not shares:
        return skipped
    for instruction in program.instructions:
        inside = program.fused_computation(instruction)
        if inside is None or _SKIPS_GROUPS not in instruction.attributes:
            continue
        skipped |= {
            product.name: shares.get(product.arrays[0].dims, 0.0)
            for product in inside.instructions
            if product.operation in PRODUCTS
        }
    return skipped


def excess_shares(calls: Sequence[KernelCall]) -> dict[tuple[int, ...], float]:
    """By the dimensions [G, M, N] of a product of all rows with all groups, the share
    of its FLOPs that is beyond what is needed, which is the same for any K.
    """
    return {
        (product.groups, product.rows, product.outer): (
            1 - product.own_rows / (product.groups * product.rows)
        )
        for product in _ragged_products(calls)
    }


class _RaggedProduct:
    """A product by groups: of rows [M, K] with matrices [G, K, N].

    Attributes:
        flops: that a device has to do.
        matrices: their dimensions, which the kernel may have in another order.
        groups, rows, inner, outer: G, M, K and N.
        own_rows: the rows in a group that the device has.
    """

    def __init__(self, call: KernelCall) -> None:
        # A third operand has the sizes of the groups.
        (_, rows), (_, self.matrices), *_ = call.operands
        self.rows, self.inner = rows[:2]
        self.flops = call.counted.flops
        self.groups = self.matrices[0]
        self.outer = math.prod(self.matrices) // self.groups // self.inner
        self.own_rows = self.flops / (2 * self.inner * self.outer)

    def is_matrices(self, array: Array) -> bool:
        return sorted(array.dims) == sorted(self.matrices)

    def is_rows(self, array: Array) -> bool:
        return array.dims == (self.rows, self.inner)

    def is_computed_from(self, operands: Sequence[Array]) -> bool:
        """Whether its rows and its matrices are among a kernel's operands."""
        return any(map(self.is_rows, operands)) and any(map(self.is_matrices, operands))


def _ragged_products(calls: Sequence[KernelCall]) -> list[_RaggedProduct]:
    return [_RaggedProduct(call) for call in calls if call.name == RAGGED]


class _Tile(NamedTuple):
    """What a step multiplies: so many rows, elements of a row, and columns of the
    result.
    """

    rows: int
    inner: int
    outer: int


def _ragged_cost(
    product: _RaggedProduct,
    operands: Sequence[Array],
    results: Sequence[Array],
    tile: _Tile,
) -> KernelCost:
    # The groups of all devices together, and how many of this device's have a row:
    # those that n random rows hit.
    all_groups = product.groups * product.rows / product.own_rows
    hit_groups = 1.0
    if all_groups > 1:
        hit_groups = product.groups * (1 - (1 - 1 / all_groups) ** product.rows)
    # A group of s rows that begins anywhere has (s - 1) / tile + 1 tiles.
    tiles = product.own_rows / tile.rows + hit_groups * (1 - 1 / tile.rows)
    visits = min(tiles, math.ceil(product.rows / tile.rows) + product.groups - 1)
    # If a tile has whole rows and matrices, what the next step uses again stays where
    # it is.
    read_rows, read_matrices = product.own_rows, hit_groups
    if tile.inner < product.inner:
        read_rows, read_matrices = visits * tile.rows, visits
    passes = math.ceil(product.outer / tile.outer)
    row_elements = read_rows * passes * product.inner
    matrix_elements = product.inner * product.outer * read_matrices

    def read_bytes(array: Array) -> float:
        if product.is_matrices(array):
            return matrix_elements * array.nbytes / array.size
        if product.is_rows(array):
            return row_elements * array.nbytes / array.size
        return float(array.nbytes)

    written = tuple(array.nbytes * product.own_rows / product.rows for array in results)
    return _cost(product.flops, tuple(map(read_bytes, operands)), written, "about")


def _grid_cost(
    body: _Body, operands: Sequence[Array], results: Sequence[Array]
) -> KernelCost:
    bound = None
    if not body.is_known:
        bound = "at least"
    if body.work.is_nested:
        bound = "about"
    arrays = (*operands, *results)
    windowed = arrays[body.prefetched :]
    if len(windowed) == len(body.windows):
        moved = [float(array.nbytes) for array in operands[: body.prefetched]]
        moved += map(
            functools.partial(_window_bytes, body.grid), windowed, body.windows
        )
    else:
        # Without windows that can be matched with arrays, each array is taken to move
        # once.
        moved = [float(array.nbytes) for array in arrays]
        if body.windows and bound is None:
            bound = "about"
    read, written = tuple(moved[: len(operands)]), tuple(moved[len(operands) :])
    return _cost(body.work.flops * body.steps, read, written, bound)


def _cost(
    flops: float, read: tuple[float, ...], written: tuple[float, ...], bound: str | None
) -> KernelCost:
    return KernelCost(flops, sum(read) + sum(written), "counted", bound, read, written)


@functools.lru_cache(maxsize=64)
def _read_body(text: str) -> _Body:
    _, *parts = _FUNCTION.split(text)
    functions = dict(zip(parts[::2], parts[1::2], strict=True))
    main = functions["main"]
    bounds = parse_numbers(search_group(_BOUNDS, main))
    windows = [
        _Window(parse_numbers(extents), _window_indices(functions[name]))
        for name, extents in _WINDOW.findall(main)
    ]
    # A negative bound is one that is not known.
    return _Body(
        grid=tuple(max(1, bound) for bound in bounds),
        is_known=min(bounds, default=1) > 0,
        prefetched=int(search_group(_PREFETCHED, main, "0")),
        windows=tuple(windows),
        work=_step_work(main),
    )


def _step_work(main: str) -> _StepWork:
    """The FLOPs of products, or else of elementwise work."""
    products, elementwise, is_nested = 0.0, 0.0, False
    # MLIR has one operation a line.
    for line in main.splitlines():
        # The types of operands and results: "... : vector<8x128xf32>,
        # vector<128x128xf32> -> vector<8x128xf32>".
        vectors = [
            parse_numbers(extents, "x")
            for extents in _VECTOR.findall(line.rpartition(" : ")[2])
        ]
        matmul = _MATMUL.search(line)
        if not vectors:
            continue
        if matmul is not None:
            contracted = math.prod(vectors[0][dim] for dim in parse_numbers(matmul[1]))
            products += 2.0 * math.prod(vectors[-1]) * contracted
            # The text is indented by the branches and loops around a line.
            is_nested |= len(line) - len(line.lstrip()) > _TOP_LEVEL_INDENT
        elif _ELEMENTWISE.search(line):
            elementwise += math.prod(vectors[0])
    return _StepWork(products or elementwise, is_nested)


def _window_indices(function: str) -> tuple[_WindowIndex, ...]:
    """The indices that a function from the steps along the grid's axes, %arg0 and so
    on, returns.
    """
    signature, *lines = function.splitlines()
    steps = {
        f"%arg{axis}": frozenset({axis})
        for axis in map(int, _ARGUMENT.findall(signature))
    }
    # Constants vary with no axis.
    axes_of: collections.defaultdict[str, frozenset[int]] = collections.defaultdict(
        frozenset, steps
    )
    for line in lines:
        result, _, expression = line.strip().partition(" = ")
        if result.startswith("return"):
            names = _NAME.findall(result.partition(" : ")[0])
            return tuple(_WindowIndex(axes_of[name], name in steps) for name in names)
        axes_of[result] = frozenset().union(
            *[axes_of[name] for name in _NAME.findall(expression)]
        )
    return ()


def _window_bytes(grid: tuple[int, ...], array: Array, window: _Window) -> float:
    """Bytes of an array that come in or go out: a window does when its index differs
    from the step before.
    """
    if len(window.indices) != len(array.dims) or not array.size:
        return float(array.nbytes)
    axes = frozenset().union(*(index.axes for index in window.indices))
    # The last axis of the grid is the fastest: with those after the last that the
    # window varies with it stays.
    varying = [axis for axis, steps in enumerate(grid) if axis in axes and steps > 1]
    changes = math.prod(grid[: max(varying, default=-1) + 1])
    area = 1
    for index, extent, dim in zip(
        window.indices, window.extents, array.dims, strict=True
    ):
        # Along an axis of the grid the windows lie beside each other, and the last may
        # be cut off.
        beside = 1
        if index.is_axis:
            beside = math.prod(grid[axis] for axis in index.axes)
        area *= min(dim, extent * beside)
        changes //= beside
    return changes * area * array.nbytes / array.size
