"""Reductions of segments, whose lengths or ends are in tensors."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.samplers import require_values

_REDUCTIONS = {
    "sum": jax.ops.segment_sum,
    "mean": jax.ops.segment_sum,
    "prod": jax.ops.segment_prod,
    "max": jax.ops.segment_max,
    "min": jax.ops.segment_min,
}
# What torch begins with unless it is told otherwise.
_INITIAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


def segment_reduce(
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> jax.Array:
    """Traced. `torch.segment_reduce` along an axis.

    Args:
        data: [B..., N, ...] with as many dimensions B as come before the axis.
        reduce: "sum", "mean", "prod", "max" or "min".
        lengths: [B..., S]; or `offsets`: [B..., S + 1].
        indices: torch has them no more.
        unsafe: the lengths' values are not checked; those of a traced program never
            are.
        initial: what each segment begins with.
    """
    del indices
    axis = axis % data.ndim
    if lengths is not None:
        if not unsafe:
            _require_lengths(lengths, data.shape[axis])
        offsets = jnp.pad(
            jnp.cumsum(lengths, axis=-1), [(0, 0)] * (lengths.ndim - 1) + [(1, 0)]
        )
    if offsets is None:
        raise RuntimeError(
            "segment_reduce(): Either lengths or offsets must be defined."
        )

    def reduce_one(data: jax.Array, offsets: jax.Array) -> jax.Array:
        return _reduce(data, offsets, reduce, initial)

    for _ in range(axis):
        reduce_one = jax.vmap(reduce_one)
    return reduce_one(data, offsets)


def _require_lengths(lengths: jax.Array, size: int) -> None:
    require_values(
        lambda values: (values >= 0).all(-1) & (values.sum(-1) == size),
        lengths,
        message=f"segment_reduce(): Expected all rows of lengths along axis to sum to data.size(axis)={size}, and no "
        "negative length",
    )


def _reduce(
    data: jax.Array, offsets: jax.Array, reduce: str, initial: float | None
) -> jax.Array:
    """The segments [S, ...] of rows [N, ...]."""
    count = offsets.shape[0] - 1
    row = jnp.arange(data.shape[0])
    segment = jnp.searchsorted(offsets[1:], row, side="right")
    # Rows before the first segment and after the last are in none, which is the number
    # that is left out.
    segment = jnp.where(row < offsets[0], count, segment)
    total = _REDUCTIONS[reduce](data, segment, count)
    start = jnp.asarray(_INITIAL[reduce] if initial is None else initial, data.dtype)
    sizes = jnp.diff(offsets).reshape(-1, *(1,) * (data.ndim - 1))
    match reduce:
        case "max":
            return jnp.maximum(total, start)
        case "min":
            return jnp.minimum(total, start)
        case "prod":
            return total * start
        case "sum":
            return total + start
    empty = jnp.nan if initial is None else start
    return jnp.where(
        sizes > 0, (total + start) / sizes.astype(data.dtype), empty
    ).astype(data.dtype)


LOWERINGS = (
    Lowering(
        torch.ops.aten.segment_reduce.default,
        on_arrays(segment_reduce),
        "has no lowering",
    ),
)
METHODS = ()
