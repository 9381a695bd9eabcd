"""Factors and inverses that a matrix may not have, and the numbers by which torch tells
so.

Shapes: N rows and columns.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import is_known
from tpuport.compat.convert import to_torch
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.linear_systems import (
    first_without_pivot,
    solve_by_factors,
)
from tpuport.compat.view_steps import on_twins


def inv_ex(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Traced. The inverse [..., N, N], and the first column, from 1, without a pivot,
    or 0.
    """
    identity = jnp.broadcast_to(
        jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape
    )
    inverse, _, _, info = solve_by_factors(matrix, identity)
    return inverse, info


def lu_factor_ex(
    matrix: jax.Array, *, pivot: bool = True
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Traced. L and U, pivots counted from 1, and the first column without one."""
    del pivot
    factors, pivots, _ = jax.lax.linalg.lu(matrix)
    return factors, pivots + 1, first_without_pivot(factors)


def cholesky_ex(
    matrix: jax.Array, *, upper: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Traced. The factor [..., N, N], and the order of the first leading minor that is
    not positive, or 0.
    """
    if not matrix.size:
        return matrix, jnp.zeros(matrix.shape[:-2], jnp.int32)
    lower = jnp.matrix_transpose(matrix).conj() if upper else matrix
    factor = jax.lax.linalg.cholesky(lower, symmetrize_input=False)
    has_failed = jnp.isnan(factor).any((-2, -1))
    info = jax.lax.cond(
        has_failed.any(),
        jnp.vectorize(_first_negative_minor, signature="(n,n)->()"),
        lambda lower: jnp.zeros(lower.shape[:-2], jnp.int32),
        lower,
    )
    factor = jnp.tril(factor)
    return jnp.matrix_transpose(factor).conj() if upper else factor, info


def _first_negative_minor(matrix: jax.Array) -> jax.Array:
    """The step of an elimination by columns that has no positive pivot."""
    size = matrix.shape[-1]

    def eliminate(step: Any, state: tuple[jax.Array, jax.Array]) -> Any:
        rest, found = state
        pivot = rest[step, step].real
        is_positive = pivot > 0
        found = jnp.where((found == 0) & ~is_positive, step + 1, found)
        column = jnp.where(jnp.arange(size) > step, rest[:, step], 0)
        divisor = jnp.where(is_positive, pivot, 1)
        return rest - jnp.outer(column, column.conj()) / divisor, found

    start = matrix, jnp.zeros((), jnp.int32)
    return jax.lax.fori_loop(0, size, eliminate, start)[1].astype(jnp.int32)


def _checked(
    function: Callable[..., tuple[jax.Array, ...]], name: str
) -> Callable[..., Any]:
    """A lowering whose last result tells of failures, raised if the caller asks."""
    lowering = on_arrays(function)

    def call(matrix: Any, *, check_errors: bool = False, **options: Any) -> Any:
        results = lowering(matrix, **options)
        if check_errors:
            raise_failure(results[-1], name, is_matrix=matrix.ndim == 2)
        return results

    return call


def refusing(target: Any, lowering: Callable[..., Any] | None = None) -> Lowering:
    """A lowering that lets torch refuse a matrix with elements that are no numbers,
    where the values are known: its algorithm does not converge there, and jax gives
    NaN.

    Args:
        lowering: torchax's own if None.
    """

    def call(matrix: Any, *args: Any, **kwargs: Any) -> Any:
        if is_known(matrix.jax()) and not jnp.isfinite(matrix.jax()).all():
            on_twins(target, to_torch(matrix), *args, **kwargs)
        return (lowering or _of_torchax(target))(matrix, *args, **kwargs)

    return Lowering(target, call, "gives NaN where torch refuses a matrix")


def _of_torchax(target: Any) -> Callable[..., Any]:
    from torchax.ops.ops_registry import all_aten_ops

    operator: Any = all_aten_ops[target.overloadpacket]
    return on_arrays(operator.func)


def cholesky(matrix: Any, upper: bool = False) -> Any:
    """`torch.cholesky`."""
    factor, info = on_arrays(cholesky_ex)(matrix, upper=upper)
    raise_failure(info, "cholesky", is_matrix=matrix.ndim == 2)
    return factor


def raise_failure(info: Any, api_name: str, *, is_matrix: bool) -> None:
    """Raise torch's error for a matrix that failed, where the values are known."""
    if is_known(info.jax()):
        check = torch.ops.aten._linalg_check_errors.default
        on_twins(check, to_torch(info).int(), api_name, is_matrix=is_matrix)


_aten = torch.ops.aten
_REASON = "tells of no failure"
LOWERINGS = (
    Lowering(_aten.linalg_inv_ex.default, _checked(inv_ex, "linalg.inv_ex"), _REASON),
    Lowering(
        _aten.linalg_lu_factor_ex.default,
        _checked(lu_factor_ex, "torch.linalg.lu_factor_ex"),
        _REASON,
    ),
    Lowering(
        _aten.linalg_cholesky_ex.default,
        _checked(cholesky_ex, "linalg.cholesky_ex"),
        _REASON,
    ),
    Lowering(_aten.cholesky.default, cholesky, _REASON),
    refusing(_aten._linalg_svd.default),
    Lowering(_aten._linalg_check_errors.default, raise_failure, _REASON),
)
METHODS = ()
