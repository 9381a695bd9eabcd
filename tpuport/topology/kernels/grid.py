"""The grid of a Pallas kernel: its steps, and which blocks of its operands they bring in.

A block is copied when its index differs from the step before, as Pallas' own pipeline has it; it runs through the grid
with the last axis fastest.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tpuport.topology.kernels.values import UNKNOWN, Value, evaluated, read

# Of a larger grid no step is looked at: every block whose index depends on an axis changes with it.
_MOST_STEPS: Final = 1 << 22


class Grid(NamedTuple):
    """Attributes: sizes; ids: the place of each step along each axis; vmapped: axes that the kernel does not see."""

    sizes: tuple[int, ...]
    ids: tuple[Value, ...]
    vmapped: tuple[int, ...]

    @property
    def steps(self) -> int:
        return math.prod(self.sizes)

    @property
    def own(self) -> tuple[int, ...]:
        """Its axes as the kernel numbers them."""
        return tuple(axis for axis in range(len(self.sizes)) if axis not in self.vmapped)


def grid_of(mapping: Any, bounds: Sequence[Value]) -> tuple[Grid, bool]:
    """(the grid, whether all of its sizes are known); one that is not known counts as 1.

    Args:
        mapping: the GridMapping of a pallas_call.
        bounds: sizes that are operands, in the order of the axes that have them.
    """
    left, known, sizes = list(bounds), True, []
    for given in mapping.grid:
        if isinstance(given, int | np.integer):
            sizes.append(int(given))
            continue
        bound = left.pop(0).known if left else None
        known = known and bound is not None
        sizes.append(1 if bound is None else int(bound.flat[0]))
    every, ids = math.prod(sizes), []
    for axis, length in enumerate(sizes):
        inner = math.prod(sizes[axis + 1 :])
        place = None if every > _MOST_STEPS else (np.arange(every, dtype=np.int32) // inner) % length
        ids.append(Value(place, frozenset({axis})))
    return Grid(tuple(sizes), tuple(ids), tuple(mapping.vmapped_dims)), known


def is_whole(block: Any) -> bool:
    """Whether the kernel gets an operand or a result where it lies, in HBM, and copies of it by itself."""
    return in_hbm(block.block_aval)


def in_hbm(reference: Any) -> bool:
    """Whether a reference in a kernel is to HBM."""
    return str(getattr(reference, "memory_space", "")).lower() in ("any", "hbm")


def moved(grid: Grid, block: Any, prefetched: Sequence[Value]) -> tuple[float, bool]:
    """(bytes of HBM that the blocks of one operand or result take, whether that is exact); 0 of one in no blocks.

    Args:
        block: its BlockMapping.
        prefetched: the numbers that index maps may read.
    """
    space = str(getattr(block.block_aval, "memory_space", "")).lower()
    if grid.steps == 0 or is_whole(block) or "semaphore" in space:
        return 0.0, True
    places = _places(grid, block.index_map_jaxpr, prefetched)
    sizes = [_block_size(one) for one in block.block_shape]
    itemsize = getattr(block.array_aval.dtype, "itemsize", 0)
    if any(place.known is None for place in places):
        area = math.prod(min(one, dim) for one, dim in zip(sizes, block.array_aval.shape, strict=True))
        return float(_changes(grid, places) * area * itemsize), False
    steps = _fresh(grid, places)
    area = np.ones(1, np.int64)
    for place, one, dim in zip(places, sizes, block.array_aval.shape, strict=True):
        # The last block of a dimension may be cut off.
        begin = place.known.astype(np.int64) * one if place.known is not None else np.zeros(1, np.int64)
        area = area * np.clip(dim - begin, 0, one)
    return float(np.broadcast_to(area, (grid.steps,))[steps].sum() * itemsize), True


def _block_size(given: Any) -> int:
    if isinstance(given, int | np.integer):
        return int(given)
    return int(getattr(given, "block_size", None) or 1)  # one that is squeezed has none


def _places(grid: Grid, index_map: Any, prefetched: Sequence[Value]) -> list[Value]:
    """The block's index along each dimension, at every step."""
    values = dict(zip(index_map.jaxpr.invars, (*grid.ids, *prefetched), strict=False))
    return _outputs(index_map.jaxpr, values, frozenset(range(len(grid.sizes))))


def _outputs(jaxpr: Any, values: dict[Any, Value], every: frozenset[int]) -> list[Value]:
    for equation in jaxpr.eqns:
        given = [read(one, values) for one in equation.invars]
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit", "closed_call") and inner is not None:
            made = _outputs(inner.jaxpr, dict(zip(inner.jaxpr.invars, given, strict=True)), every)
        elif any(hasattr(one, "eqns") or hasattr(one, "jaxpr") for one in _flat(equation.params)):
            made = [Value(None, every)] * len(equation.outvars)
        else:
            made = evaluated(equation, given)
        values.update(zip(equation.outvars, made, strict=True))
    return [read(one, values) for one in jaxpr.outvars]


def _flat(params: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for value in params.values():
        found += value if isinstance(value, tuple | list) else [value]
    return found


def _fresh(grid: Grid, places: Sequence[Value]) -> np.ndarray:
    """Whether each step has another block than the one before [S]."""
    fresh = np.zeros(grid.steps, bool)
    fresh[0] = True
    for place in places:
        if place.known is not None and len(place.known) > 1:
            fresh[1:] |= place.known[1:] != place.known[:-1]
    return fresh


def _changes(grid: Grid, places: Sequence[Value]) -> int:
    """Steps at which a block's index can be another, by the axes that it can vary with."""
    axes = functools.reduce(frozenset.union, (one.axes for one in places), UNKNOWN.axes)
    last = max((axis for axis, length in enumerate(grid.sizes) if axis in axes and length > 1), default=-1)
    return math.prod(grid.sizes[: last + 1])
