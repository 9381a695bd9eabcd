"""`aten::_grouped_mm`, the product that mixture-of-experts layers are built on.

Letters: G groups (experts), M rows, K contracted width, N columns. `offs[g]` is where
group g ends in the one dimension that is cut into groups; where a group starts is where
the one before it ended.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.errors import PortError


def grouped_mm(
    left: jax.Array,
    right: jax.Array,
    offs: jax.Array | None = None,
    bias: Any = None,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    """Traced. One matrix product a group, in each of the forms that torch allows.

    Args:
        left, right: [M, K] x [G, K, N] cuts the rows, giving [M, N]; [G, M, K] x [K, N]
            cuts the columns, giving [M, N]; [M, K] x [K, N] cuts the contraction,
            giving [G, M, N]; [G, M, K] x [G, K, N] cuts nothing.
        offs: int32 [G], the end of each group; rows or columns past the last end are
            undefined, as in torch.

    Raises:
        PortError: a bias, another output dtype, or offsets missing or superfluous, none
            of which torch has either.
    """
    _check(left, right, offs, bias, out_dtype)
    if offs is None:
        return jnp.matmul(left, right)
    offs = offs.astype(jnp.int32)
    if right.ndim == 3:
        return _by_rows(left, right, offs)
    if left.ndim == 3:
        # Columns of a product are rows of its transpose.
        return _by_rows(right.T, jnp.swapaxes(left, 1, 2), offs).T
    contraction = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (0,)), ((), ())),
        lhs_ragged_dimensions=[1],
        rhs_group_dimensions=[],
    )
    return jax.lax.ragged_dot_general(left, right, _sizes(offs), contraction)


def _by_rows(left: jax.Array, right: jax.Array, offs: jax.Array) -> jax.Array:
    """Traced. [M, K] x [G, K, N] -> [M, N], the rows cut into groups."""
    # With fewer rows than groups, most matrices need not be read.
    if left.shape[0] <= right.shape[0]:
        return _gathered(left, right, offs)
    return jax.lax.platform_dependent(left, right, offs, cpu=_scanned, default=_ragged)


def _gathered(left: jax.Array, right: jax.Array, offs: jax.Array) -> jax.Array:
    """For no more rows than groups, as in decoding: reads the matrices that rows chose
    and no others.
    """
    # Comparing everything is a single operation, where the default method is a loop.
    group = jnp.searchsorted(
        offs,
        jnp.arange(left.shape[0], dtype=offs.dtype),
        side="right",
        method="compare_all",
    )
    return jnp.einsum("mk,mkn->mn", left, right[jnp.minimum(group, right.shape[0] - 1)])


def _ragged(left: jax.Array, right: jax.Array, offs: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(left, right, _sizes(offs))


def _scanned(left: jax.Array, right: jax.Array, offs: jax.Array) -> jax.Array:
    """One product of all rows a group; XLA for the CPU turns a ragged product into more
    work than this.
    """
    row = jnp.arange(left.shape[0], dtype=offs.dtype)[:, None]

    def add_group(
        out: jax.Array, group: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        matrix, start, end = group
        # A row is in one group only, so the products need not be added.
        return jnp.where((start <= row) & (row < end), left @ matrix, out), None

    out = jnp.zeros((left.shape[0], right.shape[2]), left.dtype)
    return jax.lax.scan(add_group, out, (right, _starts(offs), offs))[0]


def _starts(offs: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.zeros(1, offs.dtype), offs[:-1]])


def _sizes(offs: jax.Array) -> jax.Array:
    return offs - _starts(offs)


def _check(
    left: jax.Array,
    right: jax.Array,
    offs: Any,
    bias: Any,
    out_dtype: torch.dtype | None,
) -> None:
    where = f"grouped_mm of {left.dtype}{left.shape} and {right.dtype}{right.shape}"
    if left.ndim not in (2, 3) or right.ndim not in (2, 3):
        raise PortError("grouped_mm takes matrices or stacks of matrices", where=where)
    if (offs is None) != (left.ndim == right.ndim == 3):
        raise PortError(
            "grouped_mm needs offsets when an operand is a matrix, and takes none otherwise",
            where=where,
        )
    if left.dtype != right.dtype:
        raise PortError("grouped_mm takes operands of one dtype", where=where)
    if bias is not None:
        raise PortError(
            "grouped_mm takes no bias", where=where, fix="add it to the result"
        )
    if out_dtype is not None and str(out_dtype) != f"torch.{left.dtype.name}":
        raise PortError(
            f"grouped_mm cannot give {out_dtype}", where=where, fix="convert the result"
        )


LOWERINGS = (
    Lowering(
        torch.ops.aten._grouped_mm.default,
        on_arrays(grouped_mm),
        "no lowering in torchax; every mixture-of-experts layer of transformers calls it",
    ),
)
METHODS = ()
