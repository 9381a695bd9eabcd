"""Systems of linear equations: by the factors of a matrix, and those that only a least
square solves.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import require
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.host_operators import on_host
from tpuport.compat.outputs import store


def lu_solve(
    factors: jax.Array,
    pivots: jax.Array,
    right: jax.Array,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> jax.Array:
    """Traced. X of A X = `right`, or X A = `right` if not `left`, of A or its adjoint.

    Args:
        factors: [..., N, N], L and U of A; the dimensions before are broadcast with
            those of `right`.
        pivots: [..., N], counted from 1.
        right: [..., N, K], or [..., K, N] if not `left`.
    """
    if not left:
        # X A = B is A' X' = B', with ' for the adjoint.
        transposed = _adjoint(right)
        return _adjoint(lu_solve(factors, pivots, transposed, adjoint=not adjoint))
    shape = jnp.broadcast_shapes(factors.shape[:-2], right.shape[:-2])
    if not right.size or not factors.size:
        return jnp.zeros((*shape, *right.shape[-2:]), right.dtype)

    def solve(factors: jax.Array, pivots: jax.Array, right: jax.Array) -> jax.Array:
        return jax.scipy.linalg.lu_solve(
            (factors, pivots - 1), right, trans=2 if adjoint else 0
        )

    return jnp.vectorize(solve, signature="(n,n),(n),(n,k)->(n,k)")(
        factors, pivots, right
    )


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.matrix_transpose(x).conj()


def solve(
    matrix: Any, right: Any, *, left: bool = True, out: Any = None
) -> torch.Tensor:
    """`torch.linalg.solve`."""
    result, _, _, info = _aten._linalg_solve_ex.default(matrix, right, left=left)
    check = _aten._linalg_check_errors.default
    check(info, "torch.linalg.solve", is_matrix=matrix.ndim == 2)
    return result if out is None else store(out, result.jax())


def solve_ex(
    matrix: Any, right: Any, *, left: bool = True, check_errors: bool = False
) -> Any:
    """`torch.linalg.solve_ex`: a singular matrix is told by a number."""
    result, _, _, info = _aten._linalg_solve_ex.default(matrix, right, left=left)
    if check_errors:
        check = _aten._linalg_check_errors.default
        check(info, "torch.linalg.solve_ex", is_matrix=matrix.ndim == 2)
    return torch.return_types.linalg_solve_ex((result, info))  # type: ignore[attr-defined]


def solve_by_factors(
    matrix: jax.Array,
    right: jax.Array,
    *,
    left: bool = True,
    check_errors: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Traced. X of A X = `right`, or X A = `right` if not `left`.

    Args:
        matrix: [..., N, N].
        right: [..., N, K], or [..., K, N] if not `left`; or vectors, [N] or [..., N]
            with the same dimensions before as those of `matrix`.
        check_errors: of the caller.

    Returns:
        X; L and U; pivots, counted from 1; the first column, from 1, without a pivot,
        or 0.
    """
    del check_errors
    is_vector = right.ndim == 1 or right.shape == matrix.shape[:-1]
    require(left or not is_vector, "linalg.solve: a vector on the left of a matrix")
    if matrix.size:
        factors, pivots, _ = jax.lax.linalg.lu(matrix)
    else:
        factors, pivots = matrix, jnp.zeros(matrix.shape[:-1], jnp.int32)
    info = first_without_pivot(factors)
    columns = right[..., None] if is_vector else right
    result = lu_solve(factors, pivots + 1, columns, left=left)
    return result[..., 0] if is_vector else result, factors, pivots + 1, info


def first_without_pivot(factors: jax.Array) -> jax.Array:
    """Traced. The first column, from 1, of U [..., N, M] whose pivot is 0; 0 if there
    is none.
    """
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    numbers = jnp.arange(1, diagonal.shape[-1] + 1, dtype=jnp.int32)
    none = diagonal.shape[-1] + 1
    first = jnp.where(diagonal == 0, numbers, none).min(-1, initial=none)
    return jnp.where(first == none, 0, first).astype(jnp.int32)


def cholesky_solve(
    right: jax.Array, factor: jax.Array, upper: bool = False
) -> jax.Array:
    """Traced. X of A X = `right`, by A's Cholesky factor.

    Args:
        right: [..., N, K].
        factor: [..., N, N], of which the lower triangle counts, or the `upper` one; the
            dimensions before are broadcast with those of `right`.
    """
    shape = jnp.broadcast_shapes(factor.shape[:-2], right.shape[:-2])
    lower = _adjoint(factor) if upper else factor
    lower = jnp.broadcast_to(lower, (*shape, *factor.shape[-2:]))
    right = jnp.broadcast_to(right, (*shape, *right.shape[-2:]))
    return jax.scipy.linalg.cho_solve((lower, True), right)


def logdet(x: jax.Array) -> jax.Array:
    """Traced. The logarithm of determinants; NaN for negative ones."""
    sign, logarithm = jnp.linalg.slogdet(x)
    if jnp.iscomplexobj(x):
        return logarithm + jnp.log(sign)
    return jnp.where(sign == -1, jnp.nan, logarithm)


def lstsq(
    matrix: Any, right: Any, rcond: float | None = None, *, driver: str | None = None
) -> Any:
    """`torch.linalg.lstsq`, by torch on the host; not traced where there are residuals
    or not by the ranks.
    """
    rows, columns = matrix.shape[-2:]
    if driver in ("gelsd", "gelss") and rows > columns:
        # jax's error of a value that is not known while tracing.
        bool(matrix.jax().any())
    return on_host(_aten.linalg_lstsq.default)(matrix, right, rcond, driver=driver)


_aten = torch.ops.aten
_TAKES_VECTORS = "takes the columns of a square matrix for vectors"
LOWERINGS = (
    Lowering(torch.linalg.solve, solve, _TAKES_VECTORS),
    Lowering(torch.linalg.solve_ex, solve_ex, _TAKES_VECTORS),
    Lowering(
        _aten._linalg_solve_ex.default, on_arrays(solve_by_factors), _TAKES_VECTORS
    ),
    Lowering(
        _aten.linalg_lu_solve.default,
        on_arrays(lu_solve),
        "solves the adjoint of a complex system",
    ),
    Lowering(
        _aten.cholesky_solve.default,
        on_arrays(cholesky_solve),
        "transposes the batch with an upper factor, and conjugates nothing",
    ),
    *(
        Lowering(target, on_arrays(logdet), "drops the angle of a complex determinant")
        for target in (torch.logdet, torch.Tensor.logdet, _aten.logdet.default)
    ),
    Lowering(_aten.linalg_lstsq.default, lstsq, "asks for the rank's value"),
)
METHODS = ()
