"""Sorting and what follows from it: the order of NaN, of bools, and which of several
equal elements counts.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from tpuport.compat import index_checks
from tpuport.compat.argument_checks import require
from tpuport.compat.convert import as_jax, is_ported
from tpuport.compat.declarations import Lowering, on_arrays


def _sortable(x: jax.Array) -> jax.Array:
    """Bools as integers, which have an order on every device."""
    return x.astype(jnp.int8) if x.dtype == jnp.bool_ else x


def sort(
    x: jax.Array, dim: int = -1, descending: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Traced. The sorted elements and where they were; equal ones keep their order, NaN
    is the greatest.
    """
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    axis = dim % x.ndim
    places = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
    key = _sortable(x)
    if descending:
        key = _reversed(key)
    # The elements move with their keys, which is faster on a TPU than gathering them
    # afterwards.
    _, values, order = jax.lax.sort(
        (key, x, places), dimension=axis, is_stable=True, num_keys=1
    )
    return values, order


def sort_stable(
    x: jax.Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Traced. `sort`, which is always stable."""
    del stable
    return sort(x, dim, descending)


def argsort(
    x: jax.Array, dim: int = -1, descending: bool = False, stable: bool = False
) -> jax.Array:
    """Traced. Where the sorted elements were."""
    del stable
    return sort(x, dim, descending)[1]


def kthvalue(
    x: jax.Array, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[jax.Array, ...]:
    """Traced. The k-th of the sorted elements along a dimension and where it was."""
    parts = sort(x, dim)
    if x.ndim == 0:
        return parts
    return tuple(
        jax.lax.index_in_dim(part, k - 1, dim % x.ndim, keepdim) for part in parts
    )


def topk(
    x: jax.Array,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002 - torch's name
) -> tuple[jax.Array, jax.Array]:
    """Traced. The k greatest or smallest elements along a dimension and where they are;
    the first among equals.
    """
    del sorted  # they always are
    if x.ndim == 0:
        values, places = topk(x[None], k, 0, largest)
        return values.reshape(()), places.reshape(())
    key = _sortable(x)
    if not largest:
        key = _reversed(key)
    elif jnp.issubdtype(key.dtype, jnp.floating):
        # XLA takes a NaN for the greatest number only if its sign is positive.
        key = jnp.where(
            jnp.isnan(key),
            jnp.nan,
            key.astype(jnp.promote_types(key.dtype, jnp.float32)),
        )
    # Along the last dimension is the only way in which jax has it.
    _, places = jax.lax.top_k(jnp.moveaxis(key, dim, -1), k)
    places = jnp.moveaxis(places, -1, dim)
    return jnp.take_along_axis(x, places, axis=dim), places


def _reversed(key: jax.Array) -> jax.Array:
    """Integers of the opposite order; NaN is torch's greatest number, and comes
    first.
    """
    if jnp.issubdtype(key.dtype, jnp.floating):
        wide = jax.lax.stop_gradient(key).astype(
            jnp.promote_types(key.dtype, jnp.float32)
        )
        # One zero and one NaN, whatever their signs.
        wide = jnp.where(jnp.isnan(wide), jnp.nan, wide + 0.0)
        bits = jax.lax.bitcast_convert_type(wide, f"int{8 * wide.dtype.itemsize}")
        # Without their sign, the bits of floating-point numbers are in the order of
        # their size.
        key = jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)
    # Unlike -x, ~x has no overflow.
    return ~key


def mode(
    x: jax.Array, dim: int = -1, keepdim: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Traced. The most frequent element along a dimension, the smallest of several, and
    its last place.
    """
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    values, places = sort(jnp.moveaxis(x, dim, -1))
    position = jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    is_first = jnp.concatenate(
        [
            jnp.ones_like(values[..., :1], jnp.bool_),
            values[..., 1:] != values[..., :-1],
        ],
        axis=-1,
    )
    first = jax.lax.cummax(jnp.where(is_first, position, 0), axis=values.ndim - 1)
    # An element's rank among its equals is greatest at the last of the most frequent
    # one.
    chosen = jnp.argmax(position - first, axis=-1, keepdims=True)
    parts = [jnp.take_along_axis(part, chosen, axis=-1) for part in (values, places)]
    value, index = (
        jnp.moveaxis(part, -1, dim) if keepdim else part[..., 0] for part in parts
    )
    return value, index


def searchsorted(
    boundaries: jax.Array,
    x: jax.Array | int | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    """Traced. Where x would be inserted into sorted boundaries, which may have one row
    for each row of x.
    """
    del out_int32
    if sorter is not None:
        boundaries = jnp.take_along_axis(boundaries, sorter, axis=-1)
    x = jnp.asarray(x)
    dtype = jnp.promote_types(boundaries.dtype, x.dtype)
    boundaries, x = boundaries.astype(dtype), x.astype(dtype)
    find = functools.partial(
        jnp.searchsorted, side="right" if right or side == "right" else "left"
    )
    for _ in range(boundaries.ndim - 1):
        find = jax.vmap(find)
    return find(boundaries, x).astype(jnp.int32)


def sign(x: jax.Array) -> jax.Array:
    """Traced. -1, 0 or 1, and 0 of NaN; a bool is its own sign."""
    if x.dtype == jnp.bool_:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        # XLA divides denormal numbers by themselves as they are.
        return jnp.where(jnp.abs(x) == 0, 0, jnp.sign(x))
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def median(
    x: jax.Array, dim: int | None = None, keepdim: bool = False, *, ignores_nan: bool
) -> Any:
    """Traced. The lower of the middle elements, and along a dimension its place; the
    first NaN unless these are ignored.
    """
    if dim is None:
        if not x.size and jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.full((), jnp.nan, x.dtype)
        return median(x.reshape(-1), 0, ignores_nan=ignores_nan)[0]
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    is_nan = x != x
    parts = sort(x, dim)
    numbers = (~is_nan).sum(dim, keepdims=True, dtype=jnp.int32)
    middle = jnp.maximum(numbers - 1, 0) // 2
    if not ignores_nan:
        # NaN are sorted last, in their order.
        middle = jnp.where(numbers < x.shape[dim], numbers, middle)
    value, place = (jnp.take_along_axis(part, middle, dim) for part in parts)
    if keepdim:
        return value, place
    return value.squeeze(dim), place.squeeze(dim)


def quantile(
    x: torch.Tensor,
    q: torch.Tensor | float,
    *args: Any,
    operator: Callable[..., torch.Tensor],
    **options: Any,
) -> torch.Tensor:
    """torch's quantiles of x, from the operators that they are composed of.

    Args:
        q: ranks from 0 to 1; numbers are checked by torch, on any device.
        operator: `aten::quantile` or `aten::nanquantile`.
    """
    if is_ported(q):
        ranks = as_jax(q)
        message = "quantile() q values must be in the range [0, 1]"
        if isinstance(ranks, Tracer):
            is_outside = _is_no_rank(ranks)
            index_checks.require(is_outside, is_outside, RuntimeError, message)
        else:
            require(not np.any(_is_no_rank(np.asarray(ranks))), message)
    return operator(x, q, *args, **options)


def _is_no_rank(ranks: Any) -> Any:
    return ~((ranks >= 0) & (ranks <= 1))


_aten = torch.ops.aten
_ORDER = "orders neither bools nor equal elements as torch does"
_TIES = "takes another one among equal elements, and fails on bools"
LOWERINGS = (
    Lowering(_aten.sort.default, on_arrays(sort), _ORDER),
    Lowering(_aten.sort.stable, on_arrays(sort_stable), _ORDER),
    Lowering(torch.argsort, on_arrays(argsort), _ORDER),
    Lowering(torch.Tensor.argsort, on_arrays(argsort), _ORDER),
    Lowering(_aten.topk.default, on_arrays(topk), _TIES),
    Lowering(
        _aten.kthvalue.default, on_arrays(kthvalue), "takes -2**31 for the greatest"
    ),
    Lowering(
        _aten.searchsorted.Tensor,
        on_arrays(searchsorted),
        "takes neither side nor sorter nor rows",
    ),
    Lowering(
        _aten.searchsorted.Scalar,
        on_arrays(searchsorted),
        "takes neither side nor sorter nor rows",
    ),
    *(
        Lowering(target, on_arrays(sign), "has no sign of NaN, and fails on bools")
        for target in (_aten.sign.default, _aten.sgn.default)
    ),
    *(
        Lowering(
            target,
            on_arrays(functools.partial(median, ignores_nan=ignores_nan)),
            "names the place of another element where some are NaN",
        )
        for packet, ignores_nan in ((_aten.median, False), (_aten.nanmedian, True))
        for target in (packet.default, packet.dim)
    ),
    Lowering(_aten.mode.default, on_arrays(mode), _TIES),
    *(
        Lowering(
            target,
            functools.partial(quantile, operator=operator),
            "reads any element for a rank that is none",
        )
        for name, operator in (
            ("quantile", _aten.quantile),
            ("nanquantile", _aten.nanquantile),
        )
        for target in (getattr(torch, name), getattr(torch.Tensor, name))
    ),
)
METHODS = ()
