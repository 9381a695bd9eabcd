"""Writing to slices, and reductions over the elements that an index sends to the same
place.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.argument_checks import require
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.slice_writes import write_slices


def scatter_reduce(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    """Traced. Reduce the source's elements into the places of x that the index names
    along a dimension.

    Args:
        x: keeps its elements where the index names no place.
        dim: the index names places along it; in the other dimensions, elements stay
            where they are.
        index: at most as long as the source in each dimension.
        source: of x's dtype.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: whether x's own element is among those that are reduced.
    """
    if x.ndim == 0:
        index, source = jnp.atleast_1d(index), jnp.atleast_1d(source)
        return scatter_reduce(
            x[None], 0, index, source, reduce, include_self=include_self
        )[0]
    if x.dtype == jnp.bool_:
        numbers, added = x.astype(jnp.int32), source.astype(jnp.int32)
        return (
            scatter_reduce(
                numbers, dim, index, added, reduce, include_self=include_self
            )
            != 0
        )
    places = list(jnp.indices(index.shape, sparse=True))
    places[dim] = index
    key = tuple(places)
    values = source[tuple(map(slice, index.shape))]
    if not include_self:
        x = x.at[key].set(_neutral(reduce, x.dtype))
    target = x.at[key]
    match reduce:
        case "prod":
            return target.multiply(values)
        case "amax":
            return target.max(values)
        case "amin":
            return target.min(values)
        case "mean":
            counts = jnp.full(x.shape, int(include_self), jnp.int32).at[key].add(1)
            return _divide(target.add(values), jnp.maximum(counts, 1))
    return target.add(values)


def _neutral(reduce: str, dtype: Any) -> np.ndarray:
    """The element that changes no other one under a reduction."""
    if reduce in ("sum", "mean", "prod"):
        return np.asarray(int(reduce == "prod"), dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf if reduce == "amax" else np.inf, dtype)
    limits = jnp.iinfo(dtype)
    return np.asarray(limits.min if reduce == "amax" else limits.max, dtype)


def _divide(total: jax.Array, counts: jax.Array) -> jax.Array:
    if jnp.issubdtype(total.dtype, jnp.integer):
        return total // counts.astype(total.dtype)
    return total / counts.astype(total.dtype)


def index_reduce(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    """Traced. Reduce slices of the source into those of x that a one-dimensional index
    names along a dimension.
    """
    if x.ndim == 0:
        return index_reduce(
            x[None], 0, index, source.reshape(-1), reduce, include_self=include_self
        )[0]
    rows = jnp.moveaxis(x, dim, 0)
    places = jnp.broadcast_to(
        index.reshape(-1, *(1,) * (rows.ndim - 1)), (index.size, *rows.shape[1:])
    )
    added = jnp.moveaxis(source, dim, 0)
    total = scatter_reduce(rows, 0, places, added, reduce, include_self=include_self)
    return jnp.moveaxis(total, 0, dim)


def index_put(
    x: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
) -> jax.Array:
    """Traced. x with values written, or added, where the indices say; bools add up by
    `or`.
    """
    from torchax.ops.ops_registry import all_aten_ops

    lowering: Any = all_aten_ops[_aten.index_put].func
    if accumulate and x.dtype == jnp.bool_:
        return (
            lowering(x.astype(jnp.int32), indices, values.astype(jnp.int32), True) != 0
        )
    return lowering(x, indices, values, accumulate)


def scatter(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array | int | float | bool,
    *,
    reduce: str,
) -> jax.Array:
    """Traced. `x.scatter(dim, index, source, reduce="add")`, or "multiply"."""
    values = jnp.asarray(source, x.dtype)
    if values.ndim == 0:
        values = jnp.broadcast_to(values, index.shape)
    return scatter_reduce(
        x, dim, index, values, {"add": "sum", "multiply": "prod"}[reduce]
    )


def scatter_add(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array
) -> jax.Array:
    """Traced. x with the source's elements added where the index says."""
    return scatter_reduce(x, dim, index, source, "sum")


def put(
    x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False
) -> jax.Array:
    """Traced. x with elements written, or added, where the index counts them, as one
    long row.
    """
    if index.size != source.size:
        raise RuntimeError(
            f"put_(): Expected source and index to have the same number of elements, but got {source.size} and "
            f"{index.size}"
        )
    row, places, values = x.ravel(), index.ravel(), source.ravel()
    if not accumulate:
        changed = row.at[places].set(values)
    elif x.dtype == jnp.bool_:
        changed = row.at[places].max(values)
    else:
        changed = row.at[places].add(values)
    return changed.reshape(x.shape)


def slice_scatter(
    x: jax.Array,
    source: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    """Traced. A copy in which a slice of one dimension has the source's values."""
    return _written_along(x, source, dim, slice(start, end, step))


def select_scatter(x: jax.Array, source: jax.Array, dim: int, index: int) -> jax.Array:
    """Traced. A copy in which one index of a dimension has the source's values."""
    return _written_along(x, source, dim, index)


def _written_along(
    x: jax.Array, source: jax.Array, dim: int, item: int | slice
) -> jax.Array:
    before = [slice(None)] * (dim % x.ndim)
    return write_slices(x, (*before, item), source.astype(x.dtype))


def masked_index(
    x: jax.Array,
    mask: jax.Array,
    indices: Sequence[jax.Array | None],
    fill: int | float,
) -> jax.Array:
    """Traced. `x[indices]` where the mask holds, else `fill`; only there may an index
    lie outside.
    """
    if not x.size:
        # Nothing can be read, but the places still have a shape.
        are_places = [index is not None for index in indices]
        are_places += [False] * (x.ndim - len(indices))
        sizes = [
            1 if is_place else size
            for is_place, size in zip(are_places, x.shape, strict=True)
        ]
        x = jnp.full(sizes, fill, x.dtype)
    values = x[_within(x, indices)]
    return jnp.where(mask, values, jnp.asarray(fill).astype(x.dtype))


def masked_index_put(
    x: jax.Array,
    mask: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
) -> jax.Array:
    """Traced. x with the values added at `indices` where the mask holds."""
    require(x.dtype == values.dtype, "Index put requires one dtype")
    added = jnp.where(mask, values, jnp.zeros((), x.dtype))
    return x.at[_within(x, indices)].add(added)


def _within(x: jax.Array, indices: Sequence[jax.Array | None]) -> tuple[Any, ...]:
    return tuple(
        slice(None) if index is None else jnp.clip(index, -size, size - 1)
        for index, size in zip(indices, x.shape, strict=False)
    )


_aten = torch.ops.aten
_OVERWRITES = "may compute the source from what it has overwritten, on a CPU"
_BOOLS = "fails on bools"
_NOT_NEGATIVE = "reads another element for a negative index"
LOWERINGS = (
    Lowering(
        _aten._unsafe_masked_index.default, on_arrays(masked_index), _NOT_NEGATIVE
    ),
    Lowering(
        _aten._unsafe_masked_index_put_accumulate.default,
        on_arrays(masked_index_put),
        _NOT_NEGATIVE,
    ),
    Lowering(
        _aten.scatter_reduce.two,
        on_arrays(scatter_reduce),
        "starts from infinity, which integers do not have",
    ),
    Lowering(_aten.index_reduce.default, on_arrays(index_reduce), "has no lowering"),
    Lowering(_aten.index_put.default, on_arrays(index_put), _BOOLS),
    Lowering(_aten._unsafe_index_put.default, on_arrays(index_put), _BOOLS),
    Lowering(_aten.scatter.reduce, on_arrays(scatter), _BOOLS),
    Lowering(_aten.scatter.value_reduce, on_arrays(scatter), _BOOLS),
    Lowering(_aten.scatter_add.default, on_arrays(scatter_add), _BOOLS),
    Lowering(_aten.slice_scatter.default, on_arrays(slice_scatter), _OVERWRITES),
    Lowering(_aten.select_scatter.default, on_arrays(select_scatter), _OVERWRITES),
    Lowering(
        _aten.put.default,
        on_arrays(put),
        "adds only the last of several elements for one place",
    ),
)
METHODS = ()
