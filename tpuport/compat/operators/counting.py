"""Results as long as the values say, which cannot be traced, and reductions over places
that values name.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat import index_checks
from tpuport.compat.argument_checks import is_known, require
from tpuport.compat.convert import jax_dtype, wrap
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.in_place import in_place


def bincount(
    x: jax.Array, weights: jax.Array | None = None, minlength: int = 0
) -> jax.Array:
    """How often each number occurs, or the sum of its weights; a dimension as long as
    the values say.
    """
    if weights is None:
        return jnp.bincount(x, minlength=minlength)
    # In torch integers weigh as float64.
    wide = (
        weights
        if weights.dtype == jnp.float32
        else weights.astype(jax_dtype(torch.float64))
    )
    return jnp.bincount(x, wide, minlength=minlength)


def nonzero(x: jax.Array) -> jax.Array:
    """The places of elements other than zero, one a row."""
    places = jnp.nonzero(jnp.atleast_1d(x))
    # A number has no dimensions to name a place in.
    return jnp.stack(places, axis=-1)[:, : x.ndim]


def nonzero_static(x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """Traced. The first `size` places of elements other than zero; rows without one
    have the fill value.
    """
    if x.ndim == 0 or x.size == 0:
        return jnp.full((size, x.ndim), fill_value, jnp.int32)
    return jnp.stack(jnp.nonzero(x, size=size, fill_value=fill_value), axis=-1)


def combinations(
    x: torch.Tensor, r: int = 2, with_replacement: bool = False
) -> torch.Tensor:
    """`torch.combinations`, whose places do not depend on values."""
    if r < 0 or x.ndim != 1:
        raise RuntimeError(
            f"combinations() expects r >= 0 and a vector, not r={r} and {list(x.shape)}"
        )
    choose = (
        itertools.combinations_with_replacement
        if with_replacement
        else itertools.combinations
    )
    if r == 0:
        return x[:0]
    places = np.array(list(choose(range(x.shape[0]), r)), np.int32).reshape(-1, r)
    return wrap(x.jax()[places])  # type: ignore[attr-defined]


def index_add(
    x: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    *,
    alpha: int | float = 1,
) -> jax.Array:
    """Traced. x with `alpha` times the slices of a source added to those that the index
    names along a dimension.
    """
    if x.ndim == 0:
        return index_add(
            x[None], 0, index.reshape(-1), source.reshape(-1), alpha=alpha
        )[0]
    rows, added = jnp.moveaxis(x, dim, 0), jnp.moveaxis(jnp.atleast_1d(source), dim, 0)
    if rows.shape[1:] != added.shape[1:]:
        raise RuntimeError(
            f"index_add() expects a source of the tensor's shape but for dimension {dim}: "
            f"{source.shape} does not fit {x.shape}"
        )
    if x.dtype == jnp.bool_:
        total = rows.at[index].max(added) if alpha else rows
    else:
        total = rows.at[index].add((added * alpha).astype(x.dtype))
    return jnp.moveaxis(total, 0, dim)


def embedding(weight: jax.Array, indices: jax.Array, *options: Any) -> jax.Array:
    """Traced. Rows of a matrix."""
    from torchax.ops.ops_registry import all_aten_ops

    if weight.ndim != 2:
        raise RuntimeError(
            f"embedding() expects a weight of two dimensions, not {weight.shape}"
        )
    lowering: Any = all_aten_ops[_aten.embedding].func
    return lowering(weight, indices, *options)


def index_fill(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    """Traced. x with a number in the slices that the index names along a dimension,
    also counted from its end.
    """
    if x.ndim == 0:
        return index_fill(x[None], 0, index, value)[0]
    rows = jnp.moveaxis(x, dim, 0)
    return jnp.moveaxis(rows.at[index].set(jnp.asarray(value).astype(x.dtype)), 0, dim)


def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    """Traced or not. x with the source's elements, in their order, where the mask is
    true.

    Raises:
        RuntimeError: torch's, for too few elements of the source, if the mask's values
            are known.
    """
    if mask.dtype != jnp.bool_:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    x, mask = jnp.broadcast_to(x, shape), jnp.broadcast_to(mask, shape)
    _require_elements(source.size, mask)
    if not source.size:
        return x
    row = jnp.cumsum(mask.ravel().astype(jnp.int32)) - 1
    return jnp.where(mask, source.ravel()[jnp.maximum(row, 0)].reshape(shape), x)


def _require_elements(size: int, mask: jax.Array) -> None:
    """Raise torch's error if a source of so many elements has fewer than the mask has
    ones: now, or from a program that checks its indices.
    """
    if size >= mask.size:
        return
    message = "Number of elements of source < number of ones in mask"
    count = jnp.count_nonzero(mask)
    if is_known(count):
        require(int(count) <= size, message)
    else:
        index_checks.require(count, count > size, RuntimeError, message)


def embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Traced. Sums (mode 0), means (1) or maxima (2) of embeddings over bags, each from
    its offset to the next.

    Returns:
        one row a bag; and for torch's backward pass, which is not used here, each
        index's bag, the bags' sizes, zeros.
    """
    del scale_grad_by_freq, sparse
    bags = offsets.shape[0] - include_last_offset
    bag = (
        jnp.searchsorted(offsets[:bags], jnp.arange(indices.shape[0]), side="right") - 1
    )
    is_counted = (
        indices != padding_idx
        if padding_idx >= 0
        else jnp.ones(indices.shape, jnp.bool_)
    )
    if include_last_offset:
        is_counted &= jnp.arange(indices.shape[0]) < offsets[-1]
    counts = is_counted.astype(indices.dtype)
    size = jnp.zeros(bags, indices.dtype).at[bag].add(counts)
    rows = weight[indices].astype(jnp.promote_types(weight.dtype, jnp.float32))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    is_counted = is_counted[:, None]
    empty = jnp.zeros((bags, weight.shape[1]), rows.dtype)
    if mode == 2:
        out = (empty - jnp.inf).at[bag].max(jnp.where(is_counted, rows, -jnp.inf))
        out = jnp.where(size[:, None] > 0, out, 0)
    else:
        out = empty.at[bag].add(jnp.where(is_counted, rows, 0))
    if mode == 1:
        out = out / jnp.maximum(size, 1)[:, None]
    return out.astype(weight.dtype), bag, size, jnp.zeros_like(size)


_aten = torch.ops.aten
_BAGS = "sums the wrong rows"
LOWERINGS = (
    Lowering(
        _aten.index_add.default,
        on_arrays(index_add),
        "broadcasts the source, and fails on bools",
    ),
    Lowering(
        _aten.index_fill.int_Scalar,
        on_arrays(index_fill),
        "counts no index from the end",
    ),
    Lowering(
        _aten.index_fill.int_Tensor,
        on_arrays(index_fill),
        "counts no index from the end",
    ),
    Lowering(
        _aten.embedding.default, on_arrays(embedding), "takes any array for a matrix"
    ),
    Lowering(
        _aten.embedding_renorm_.default,
        in_place(_aten.embedding_renorm.default),
        "needs the number of rows to scale",
    ),
    Lowering(
        _aten.masked_scatter.default,
        on_arrays(masked_scatter),
        "takes numbers for a mask",
    ),
    Lowering(_aten._embedding_bag.default, on_arrays(embedding_bag), _BAGS),
    Lowering(
        _aten._embedding_bag_forward_only.default, on_arrays(embedding_bag), _BAGS
    ),
    Lowering(
        _aten.bincount.default,
        on_arrays(bincount),
        "adds up weights that are integers as integers",
    ),
    Lowering(
        _aten.nonzero_static.default,
        on_arrays(nonzero_static),
        "needs the number of places",
    ),
    Lowering(torch.combinations, combinations, "needs the values of a mask"),
    Lowering(
        _aten.nonzero.default,
        on_arrays(nonzero),
        "gives a tensor on the host for a number",
    ),
)
METHODS = ()
