"""`aten::_grouped_mm`, the product that mixture-of-experts layers are built on.

Letters: G groups (experts), M rows, K contracted width, N columns. `offs[g]` is where group g ends in the one
dimension that is cut into groups; where a group starts is where the one before it ended.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.registry import Lowering, on_arrays
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
        left, right: [M, K] x [G, K, N] cuts the rows, giving [M, N]; [G, M, K] x [K, N] cuts the columns, giving
            [M, N]; [M, K] x [K, N] cuts the contraction, giving [G, M, N]; [G, M, K] x [G, K, N] cuts nothing.
        offs: int32 [G], the end of each group; rows or columns past the last end are undefined, as in torch.

    Raises:
        PortError: a bias, another output dtype, or offsets missing or superfluous, none of which torch has either.
    """
    _check(left, right, offs, bias, out_dtype)
    if offs is None:
        return jnp.matmul(left, right)
    sizes = jnp.diff(offs.astype(jnp.int32), prepend=jnp.zeros(1, jnp.int32))
    if right.ndim == 3:
        return jax.lax.ragged_dot(left, right, sizes)
    if left.ndim == 3:
        return jax.lax.ragged_dot(right.T, jnp.swapaxes(left, 1, 2), sizes).T
    contraction = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (0,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[]
    )
    return jax.lax.ragged_dot_general(left, right, sizes, contraction)


def _check(left: jax.Array, right: jax.Array, offs: Any, bias: Any, out_dtype: torch.dtype | None) -> None:
    where = f"grouped_mm of {left.dtype}{left.shape} and {right.dtype}{right.shape}"
    if left.ndim not in (2, 3) or right.ndim not in (2, 3):
        raise PortError("grouped_mm takes matrices or stacks of matrices", where=where)
    if (offs is None) != (left.ndim == right.ndim == 3):
        raise PortError(
            "grouped_mm needs offsets when an operand is a matrix, and takes none otherwise", where=where
        )
    if left.dtype != right.dtype:
        raise PortError("grouped_mm takes operands of one dtype", where=where)
    if bias is not None:
        raise PortError("grouped_mm takes no bias", where=where, fix="add it to the result")
    if out_dtype is not None and str(out_dtype) != f"torch.{left.dtype.name}":
        raise PortError(f"grouped_mm cannot give {out_dtype}", where=where, fix="convert the result")


LOWERINGS = (
    Lowering(
        torch.ops.aten._grouped_mm.default,
        on_arrays(grouped_mm),
        "no lowering in torchax; every mixture-of-experts layer of transformers calls it",
    ),
)
METHODS = ()
