"""The steps of a Pallas kernel's grid: the numbers known at each, and the blocks of
operands that they bring in.

Indices and conditions are integers and truth values that often follow from the grid
alone. They are computed here for all steps at once, with numpy. A block is copied when
its index differs from the step before, as in Pallas' own pipeline, which runs through
the grid with the last axis fastest.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal

from tpuport.compat.jaxprs import Equation, callee, sub_jaxprs
from tpuport.topology.kernels.axis_splits import UNSPLIT, Split
from tpuport.topology.kernels.kernel_calls import item_bytes

# Larger arrays are data, such as a mask, and not an index.
_MOST_NUMBERS: Final = 1 << 22
# The steps of a larger grid are not looked at: every block whose index depends on an
# axis counts as changing with it.
_MOST_STEPS: Final = 1 << 22


class StepValue(NamedTuple):
    """What is known of a value at the steps of a grid.

    Attributes:
        numbers: [S, ...] with S the steps of the grid, or 1 if all steps have the same;
            for a reference, what it has stored. None if they are unknown.
        axes: of the grid, those that the value can vary with.
        split: in a shard_map, the mesh's axes that split each of its dimensions (see
            `axis_splits`).
    """

    numbers: np.ndarray | None = None
    axes: frozenset[int] = frozenset()
    split: Split = UNSPLIT


UNKNOWN: Final = StepValue()


class Environment:
    """What is known of the variables of a jaxpr while its equations are gone
    through.
    """

    def __init__(self) -> None:
        self._values: dict[Any, StepValue] = {}

    def read(self, variables: Iterable[Any]) -> list[StepValue]:
        """What is known of operands of an equation, or of results of the jaxpr."""
        return list(map(self._read_variable, variables))

    def assign(self, variables: Iterable[Any], values: Iterable[StepValue]) -> None:
        """Store what is known of variables, in order; of those beyond the values
        nothing is known.
        """
        self._values.update(zip(variables, values, strict=False))

    def _read_variable(self, variable: Any) -> StepValue:
        if not isinstance(variable, Literal):
            return self._values.get(variable, UNKNOWN)
        dtype = getattr(variable.aval, "dtype", None)
        if not _is_integer(dtype):
            return UNKNOWN
        # A literal is a Python number, whose own dtype may be wider than the program's.
        return constant(np.asarray(variable.val, dtype))


def constant(value: Any) -> StepValue:
    """An array or a number that is written into the program; unknown if it is large or
    not of integers.
    """
    if isinstance(value, bool | int):
        return StepValue(np.asarray(value)[None])
    if (
        not _is_integer(getattr(value, "dtype", None))
        or math.prod(value.shape) > _MOST_NUMBERS
    ):
        return UNKNOWN
    return StepValue(np.asarray(value)[None])


def _known_numbers(values: Iterable[StepValue]) -> list[np.ndarray] | None:
    """The numbers of all values; None if any of them are unknown."""
    numbers = [value.numbers for value in values]
    known = [array for array in numbers if array is not None]
    if len(known) < len(numbers):
        return None
    return known


def _varying_axes(values: Iterable[StepValue]) -> frozenset[int]:
    """The axes of the grid that any of the values can vary with."""
    return frozenset[int]().union(*(value.axes for value in values))


def evaluate(equation: Equation, operands: Sequence[StepValue]) -> list[StepValue]:
    """What is known of the results of an equation that runs no other jaxpr."""
    axes = _varying_axes(operands)
    unknown = [StepValue(None, axes)] * len(equation.outvars)
    if equation.primitive.name == "get":
        return [StepValue(_stored_number(equation, operands), axes)]
    rule = _RULES.get(equation.primitive.name)
    arrays = _known_numbers(operands)
    if rule is None or arrays is None:
        return unknown
    [aval] = (variable.aval for variable in equation.outvars)
    steps = max(map(len, arrays))
    if not _is_integer(aval.dtype) or math.prod(aval.shape) * steps > _MOST_NUMBERS:
        return unknown
    with np.errstate(all="ignore"):  # integers overflow as they do on the device
        numbers = np.asarray(rule(equation.params, *_align(arrays)))
    return [
        StepValue(numbers.astype(aval.dtype).reshape(len(numbers), *aval.shape), axes)
    ]


def _is_integer(dtype: Any) -> bool:
    """Whether a dtype is of integers or truth values. Those of random keys and
    semaphores are not numpy's.
    """
    return isinstance(dtype, np.dtype) and dtype.kind in "biu"


def _align(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Give arrays as many dimensions each, so that a number goes with an array of any
    shape.
    """
    dims = max(array.ndim for array in arrays)
    return [
        array.reshape(len(array), *(1,) * (dims - array.ndim), *array.shape[1:])
        for array in arrays
    ]


def _stored_number(
    equation: Equation, operands: Sequence[StepValue]
) -> np.ndarray | None:
    """A number that is read from a reference; None if an array is read, or what is
    stored is unknown.
    """
    stored = operands[0].numbers
    indexers = jax.tree.unflatten(equation.params["tree"], operands[1:])
    if stored is None or len(indexers) != 1 or equation.outvars[0].aval.shape:
        return None
    indices = _known_numbers(map(_index_value, indexers[0].indices))
    if indices is None or len(indices) != stored.ndim - 1:
        return None
    # An index out of bounds is read only in a branch that is not taken.
    bounded = (
        np.clip(index, 0, size - 1)
        for index, size in zip(indices, stored.shape[1:], strict=True)
    )
    return np.atleast_1d(stored[0][tuple(bounded)])


def _index_value(index: Any) -> StepValue:
    """What is known of an index along one dimension; nothing of a slice."""
    if isinstance(index, StepValue):
        return index
    if isinstance(index, int | np.integer):
        return StepValue(np.asarray(index)[None])
    return UNKNOWN


def _divide(_: Any, dividend: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """Towards zero, as XLA divides integers."""
    divisor = np.where(divisor == 0, 1, divisor)
    quotient = np.abs(dividend) // np.abs(divisor)
    return np.where((dividend < 0) != (divisor < 0), -quotient, quotient)


def _remainder(_: Any, dividend: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    return np.fmod(dividend, np.where(divisor == 0, 1, divisor))


def _broadcast(params: Any, array: np.ndarray) -> np.ndarray:
    shape = params["shape"]
    dims = [1] * len(shape)
    for dim, extent in zip(
        params["broadcast_dimensions"], array.shape[1:], strict=True
    ):
        dims[dim] = extent
    return np.broadcast_to(array.reshape(len(array), *dims), (len(array), *shape))


def _select(_: Any, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.choose(which.astype(np.int32), np.broadcast_arrays(which, *cases)[1:])


def _power(params: Any, base: np.ndarray) -> np.ndarray:
    # A negative power of an integer is one divided by more than one, which is zero for
    # all but 1 and -1.
    if params["y"] < 0:
        return base * 0
    return base ** params["y"]


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _without_params(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def rule(_: Any, *operands: np.ndarray) -> np.ndarray:
        return function(*operands)

    return rule


_ELEMENTWISE: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "max": np.maximum,
    "min": np.minimum, "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert,
    "abs": np.abs, "sign": np.sign, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "shift_left": operator.lshift,
    "shift_right_arithmetic": operator.rshift, "clamp": _clamp,
    # The result's shape and dtype are the equation's.
    "convert_element_type": _same, "copy": _same, "reshape": _same, "squeeze": _same, "expand_dims": _same,
    "stop_gradient": _same,
}  # fmt: skip
_RULES: Final[dict[str, Callable[..., Any]]] = {
    **{name: _without_params(function) for name, function in _ELEMENTWISE.items()},
    "div": _divide, "rem": _remainder, "broadcast_in_dim": _broadcast, "select_n": _select, "integer_pow": _power,
}  # fmt: skip


class Grid(NamedTuple):
    """The grid of a kernel.

    Attributes:
        sizes: steps along each axis; 1 for an axis whose size is known only at run
            time.
        ids: the index of each step along each axis.
        vmapped: axes that `jax.vmap` has added, which the kernel does not see.
        is_known: whether all sizes are known.
    """

    sizes: tuple[int, ...]
    ids: tuple[StepValue, ...]
    vmapped: tuple[int, ...]
    is_known: bool

    @property
    def steps(self) -> int:
        return math.prod(self.sizes)

    @property
    def own_axes(self) -> tuple[int, ...]:
        """Its axes as the kernel numbers them."""
        return tuple(
            axis for axis in range(len(self.sizes)) if axis not in self.vmapped
        )


def read_grid(mapping: Any, bounds: Sequence[StepValue]) -> Grid:
    """The grid of a pallas_call.

    Args:
        mapping: its GridMapping.
        bounds: sizes that are operands, in the order of the axes that have them.
    """
    remaining, is_known = iter(bounds), True
    sizes = []
    for size in mapping.grid:
        # A size that is not a number is marked, and its value is an operand.
        if not isinstance(size, int | np.integer):
            numbers = next(remaining, UNKNOWN).numbers
            size = 1
            if numbers is None:
                is_known = False
            else:
                size = numbers.flat[0]
        sizes.append(int(size))
    ids = tuple(
        StepValue(_step_ids(sizes, axis), frozenset({axis}))
        for axis in range(len(sizes))
    )
    return Grid(tuple(sizes), ids, tuple(mapping.vmapped_dims), is_known)


def _step_ids(sizes: Sequence[int], axis: int) -> np.ndarray | None:
    """The index of each step along an axis; None for a grid of too many steps."""
    steps, faster = math.prod(sizes), math.prod(sizes[axis + 1 :])
    if steps > _MOST_STEPS:
        return None
    return (np.arange(steps, dtype=np.int32) // faster) % sizes[axis]


def is_in_hbm(reference: Any) -> bool:
    """Whether a reference in a kernel is to HBM: the kernel copies of it by itself."""
    return _memory_space(reference) in ("any", "hbm")


def _memory_space(reference: Any) -> str:
    return str(getattr(reference, "memory_space", "")).lower()


class BlockTraffic(NamedTuple):
    """Bytes of HBM that the blocks of an operand or a result take, and whether that is
    exact.
    """

    nbytes: float
    is_exact: bool


def count_block_bytes(
    grid: Grid, block: Any, prefetched: Sequence[StepValue]
) -> BlockTraffic:
    """The bytes that the pipeline moves of one operand or result; 0 for what is not
    moved in blocks.

    Args:
        grid: of the kernel.
        block: the BlockMapping of the operand or result.
        prefetched: the numbers that index maps may read.
    """
    is_semaphore = "semaphore" in _memory_space(block.block_aval)
    if grid.steps == 0 or is_semaphore or is_in_hbm(block.block_aval):
        return BlockTraffic(0.0, True)
    shape = block.array_aval.shape
    extents = list(map(_block_extent, block.block_shape))
    indices = _block_indices(grid, block.index_map_jaxpr, prefetched)
    itemsize = item_bytes(block.array_aval)
    known = _known_numbers(indices)
    if known is None:
        area = math.prod(map(min, extents, shape))
        return BlockTraffic(
            float(_most_changes(grid, indices) * area * itemsize), False
        )
    area = np.ones(1, np.int64)
    for index, extent, length in zip(known, extents, shape, strict=True):
        # The last block of a dimension may be cut off.
        start = index.astype(np.int64) * extent
        area = area * np.clip(length - start, 0, extent)
    moved = np.broadcast_to(area, (grid.steps,))[_changed_steps(grid, known)]
    return BlockTraffic(float(moved.sum() * itemsize), True)


def _block_extent(extent: Any) -> int:
    """The extent of a block along a dimension; one that is squeezed has no size, and is
    1.
    """
    if isinstance(extent, int | np.integer):
        return int(extent)
    return int(getattr(extent, "block_size", None) or 1)


def _block_indices(
    grid: Grid, index_map: Any, prefetched: Sequence[StepValue]
) -> list[StepValue]:
    """The index of the block along each dimension, at every step."""
    return _run_index_map(
        index_map.jaxpr, [*grid.ids, *prefetched], frozenset(range(len(grid.sizes)))
    )


def _run_index_map(
    jaxpr: Jaxpr, arguments: Sequence[StepValue], all_axes: frozenset[int]
) -> list[StepValue]:
    environment = Environment()
    environment.assign(jaxpr.invars, arguments)
    for equation in jaxpr.eqns:
        operands = environment.read(equation.invars)
        called = callee(equation)
        if called is not None:
            results = _run_index_map(called.jaxpr, operands, all_axes)
        elif sub_jaxprs(equation):
            # Branches and loops in an index map are rare, and not gone through.
            results = [StepValue(None, all_axes)] * len(equation.outvars)
        else:
            results = evaluate(equation, operands)
        environment.assign(equation.outvars, results)
    return environment.read(jaxpr.outvars)


def _changed_steps(grid: Grid, indices: Sequence[np.ndarray]) -> np.ndarray:
    """Whether each step has another block than the step before [S]."""
    changed = np.zeros(grid.steps, bool)
    changed[0] = True
    for index in indices:
        # An index that all steps share has one entry.
        steps = np.broadcast_to(index, changed.shape)
        changed[1:] |= steps[1:] != steps[:-1]
    return changed


def _most_changes(grid: Grid, indices: Sequence[StepValue]) -> int:
    """Steps at which a block's index can be another, by the axes that it can vary
    with.
    """
    varying = [axis for axis in _varying_axes(indices) if grid.sizes[axis] > 1]
    # Every step along an axis slower than one that it varies with starts that one over.
    return math.prod(grid.sizes[: max(varying, default=-1) + 1])
