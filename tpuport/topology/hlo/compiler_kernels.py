"""Kernels that the compiler for TPUs makes by itself, of products by groups and of softmax: how much they do.

Their bodies are text in the program, with a grid and windows as Pallas' kernels have; those of Pallas are bytecode, and
are counted where they are traced.
"""

import base64
import functools
import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tpuport.topology.hlo.program import Instruction, Program
from tpuport.topology.hlo.array_types import Array
from tpuport.topology.kernels.kernel_calls import RAGGED, KernelCall, KernelCost

_BODY: Final = re.compile(r'"body":"(bW9kdWxl[A-Za-z0-9+/]*=*)"')  # "module"
_TILING: Final = re.compile(r'\bragged_dot_tiling="(\d+),(\d+),(\d+)"')
_BOUNDS: Final = re.compile(r"\biteration_bounds = array<i64: ([-\d, ]+)>")
_PREFETCHED: Final = re.compile(r"\bscalar_prefetch = (\d+)")
_WINDOW: Final = re.compile(r"\btransform_indices = @([\w.-]+), window_bounds = array<i64: ([\d, ]+)>")
_FUNCTION: Final = re.compile(r"^  func\.func (?:private )?@([\w.-]+)\(", re.MULTILINE)
_NAME: Final = re.compile(r"%[\w.]+")
_MATMUL: Final = re.compile(r"dot_dimension_numbers<\[([\d, ]*)\]")
_VECTOR: Final = re.compile(r"\bvector<((?:\d+x)*\d+)x")
_ELEMENTWISE: Final = re.compile(r"arith\.(?:add|sub|mul|div|maximum|minimum)f |vector\.multi_reduction ")
_OUTERMOST: Final = 4  # spaces before what runs at every step, in no branch and no loop


class _Kernel(NamedTuple):
    """What a body's text says.

    Attributes:
        grid: steps along each axis, 0 where that is known at run time only.
        prefetched: how many operands have no window.
        windows: of the other operands, then of the results: (function of its place, sizes).
    """

    main: str
    grid: tuple[int, ...]
    prefetched: int
    windows: tuple[tuple[str, tuple[int, ...]], ...]


def counted(program: Program, instruction: Instruction, calls: Sequence[KernelCall]) -> KernelCost | None:
    """What one execution of a kernel does; None for one that the compiler has not made.

    One that multiplies rows by their group's matrix goes through tiles of rows, once for each group that has a row in
    it, and through none of rows in no group: how many depends on data. Here rows are spread over all groups evenly and
    at random (see `calls.by_groups`). All others do as much at each step of their grid.

    Args:
        calls: those that were traced, among them products by groups.
    """
    body = _BODY.search(instruction.attributes)
    if body is None:
        return None
    given = [made for one in program.operands(instruction) for made in one.arrays]
    tiling = _TILING.search(instruction.attributes)
    if tiling is not None:
        found = next((one for one in calls if one.name == RAGGED and _is_of(one, given)), None)
        return found and _by_groups(found, given, instruction.results, *map(int, tiling.groups()))
    return _over_grid(base64.b64decode(body[1]).decode(), given, instruction.results)


def count_expanded_flops(program: Program, calls: Sequence[KernelCall]) -> float:
    """FLOPs that a step does beyond what is needed where rows are few: the compiler multiplies them by all groups.

    Such a product has the groups as a batch, [G, M, N], and no name.
    """
    beyond: dict[tuple[int, ...], float] = {}
    for one in calls:
        if one.name == RAGGED:
            groups, rows, inner, outer = _sizes(one)
            beyond[groups, rows, outer] = 2.0 * groups * rows * inner * outer - one.counted.flops

    def excess(one: Instruction) -> float:
        is_product = one.operation in ("convolution", "dot") and not one.op_name
        return beyond.get(one.arrays[0].dims, 0.0) if is_product else 0.0

    return program.total(excess) if beyond else 0.0


def _sizes(call: KernelCall) -> tuple[int, int, int, int]:
    """Groups, rows, numbers of a row, numbers of a result's row: of [M, K] by [G, K, N]."""
    (_, rows), (_, matrices), *_ = call.operands
    return matrices[0], rows[0], rows[1], math.prod(matrices) // matrices[0] // rows[1]


def _is_of(call: KernelCall, given: Sequence[Array]) -> bool:
    """Whether a kernel has a call's rows and matrices, which may lie the other way."""
    (_, rows), (_, matrices), *_ = call.operands
    shapes = [sorted(one.dims) for one in given]
    return any(one.dims == rows for one in given) and sorted(matrices) in shapes


def _by_groups(
    call: KernelCall, given: Sequence[Array], results: Sequence[Array], tile: int, depth: int, width: int
) -> KernelCost:
    """Of tiles of `tile` rows, `depth` numbers of each, and `width` of the result's."""
    groups, rows, inner, outer = _sizes(call)
    matrices = sorted(call.operands[1][1])
    own = call.counted.flops / (2 * inner * outer)  # of the rows
    every = groups * rows / own
    met = groups * (1 - (1 - 1 / every) ** rows) if every > 1 else 1.0
    # A group of s rows that begins anywhere has (s - 1) / tile + 1 tiles.
    visits = min(own / tile + met * (1 - 1 / tile), -(-rows // tile) + groups - 1)
    whole = depth >= inner  # then what the next step has too stays where it is
    passes = -(-outer // width)
    taken = passes * inner * (own if whole else visits * tile)
    weights = inner * outer * (met if whole else visits)

    def read(one: Array) -> float:
        numbers = taken if one.dims == (rows, inner) else one.size
        return (weights if sorted(one.dims) == matrices else numbers) * one.nbytes / one.size

    written = tuple(one.nbytes * own / rows for one in results)
    return _cost(call.counted.flops, tuple(map(read, given)), written, "about")


def _over_grid(text: str, given: Sequence[Array], results: Sequence[Array]) -> KernelCost:
    kernel = _read(text)
    steps = math.prod(size or 1 for size in kernel.grid)
    flops, is_nested = _flops(kernel.main)
    bound = "about" if is_nested else "at least" if 0 in kernel.grid else None
    places = {name: _places(text, name) for name, _ in kernel.windows}
    arrays = (*given[kernel.prefetched :], *results)
    if len(arrays) != len(kernel.windows):  # as where it has none: each once
        moved = [float(one.nbytes) for one in (*given, *results)]
        bound = bound or ("about" if kernel.windows else None)
    else:
        windows = zip(arrays, kernel.windows, strict=True)
        moved = [float(one.nbytes) for one in given[: kernel.prefetched]]
        moved += [_moved(kernel.grid, one, places[name], sizes) for one, (name, sizes) in windows]
    return _cost(flops * steps, tuple(moved[: len(given)]), tuple(moved[len(given) :]), bound)


def _cost(flops: float, read: tuple[float, ...], written: tuple[float, ...], bound: str | None) -> KernelCost:
    return KernelCost(flops, sum(read) + sum(written), "counted", bound, read, written)


@functools.lru_cache(maxsize=64)
def _read(text: str) -> _Kernel:
    main = _functions(text)["main"]
    bounds, prefetched = _BOUNDS.search(main), _PREFETCHED.search(main)
    return _Kernel(
        main,
        tuple(max(0, size) for size in _numbers(bounds[1])) if bounds else (),
        int(prefetched[1]) if prefetched else 0,
        tuple((name, _numbers(sizes)) for name, sizes in _WINDOW.findall(main)),
    )


def _functions(text: str) -> dict[str, str]:
    starts = [(found[1], found.start()) for found in _FUNCTION.finditer(text)]
    ends = [start for _, start in starts[1:]] + [len(text)]
    return {name: text[start:end] for (name, start), end in zip(starts, ends, strict=True)}


def _flops(main: str) -> tuple[float, bool]:
    """(FLOPs of a step, whether some are in a branch or a loop): of products, or else of elementwise work."""
    products, elementwise, is_nested = 0.0, 0.0, False
    for line in main.splitlines():
        sizes = [_numbers(one, "x") for one in _VECTOR.findall(line.rpartition(" : ")[2])]
        if "tpu.matmul" in line and (contracted := _MATMUL.search(line)) and sizes:
            products += 2.0 * math.prod(sizes[-1]) * math.prod(sizes[0][at] for at in _numbers(contracted[1]))
            is_nested = is_nested or len(line) - len(line.lstrip()) > _OUTERMOST
        elif sizes and _ELEMENTWISE.search(line):
            elementwise += math.prod(sizes[0])
    return products or elementwise, is_nested


def _places(text: str, name: str) -> list[tuple[bool, frozenset[int]]]:
    """Of a window along each dimension: (whether its place is an axis of the grid, axes that it varies with)."""
    depends: dict[str, frozenset[int]] = {}
    lines = _functions(text)[name].splitlines()
    for line in lines[1:]:
        made, _, right = line.strip().partition(" = ")
        if line.strip().startswith("return"):
            names = _NAME.findall(line.partition(" : ")[0])
            return [(one.startswith("%arg"), _axes(one, depends)) for one in names]
        depends[made] = frozenset().union(*(_axes(one, depends) for one in _NAME.findall(right)))
    return []


def _axes(name: str, depends: dict[str, frozenset[int]]) -> frozenset[int]:
    return frozenset({int(name[4:])}) if name.startswith("%arg") else depends.get(name, frozenset())


def _moved(
    grid: tuple[int, ...], array: Array, places: list[tuple[bool, frozenset[int]]], sizes: tuple[int, ...]
) -> float:
    """Bytes of an array that come in or go out: a window does when its place differs from the step before."""
    steps = [size or 1 for size in grid]
    axes = {axis for _, along in places for axis in along if axis < len(steps)}
    last = max((axis for axis in axes if steps[axis] > 1), default=-1)
    changes = math.prod(steps[: last + 1])
    if len(places) != len(array.dims) or not array.size:
        return float(array.nbytes)
    area = 1
    for (plain, along), size, dim in zip(places, sizes, array.dims, strict=True):
        times = math.prod(steps[axis] for axis in along) if plain else 1
        area *= min(dim, size * times)
        changes //= times
    return changes * area * array.nbytes / array.size


def _numbers(text: str, between: str = ",") -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(between) if one.strip())
